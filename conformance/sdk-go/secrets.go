package main

import (
	"context"

	"github.com/dapr/go-sdk/client"
	"google.golang.org/grpc/codes"
)

var secretChecks = []check{
	{"one", func(ctx context.Context, dapr client.Client) error {
		secret, err := dapr.GetSecret(ctx, "vault", "nested:user", nil)
		return first(err, same("secret", secret, map[string]string{"nested:user": "ahoy"}))
	}},
	{"all", func(ctx context.Context, dapr client.Client) error {
		secrets, err := dapr.GetBulkSecret(ctx, "vault", nil)
		return first(err, same("how many", len(secrets), 2), same("one", secrets["plain"]["plain"], "sesame"))
	}},
	{"errors", func(ctx context.Context, dapr client.Client) error {
		_, missing := dapr.GetSecret(ctx, "vault", "missing", nil)
		_, nowhere := dapr.GetSecret(ctx, "nowhere", "plain", nil)
		return first(
			refused("a missing secret", missing, codes.Internal, "failed getting secret with key missing"),
			refused("an unknown store", nowhere, codes.InvalidArgument, "failed finding secret store"))
	}},
}
