package main

import (
	"context"
	"time"

	"github.com/dapr/go-sdk/client"
	"google.golang.org/grpc/codes"
)

var lockChecks = []check{
	{"one owner at a time", func(ctx context.Context, dapr client.Client) error {
		return first(
			locked(ctx, dapr, "helm", "ann", 60, true),
			locked(ctx, dapr, "helm", "bob", 60, false),
			unlocked(ctx, dapr, "helm", "bob", "LOCK_BELONGS_TO_OTHERS"),
			unlocked(ctx, dapr, "helm", "ann", "SUCCESS"),
			unlocked(ctx, dapr, "helm", "ann", "LOCK_DOES_NOT_EXIST"),
			locked(ctx, dapr, "helm", "bob", 60, true))
	}},
	{"locks expire", func(ctx context.Context, dapr client.Client) error {
		if err := locked(ctx, dapr, "watch", "ann", 1, true); err != nil {
			return err
		}
		time.Sleep(1200 * time.Millisecond)
		return locked(ctx, dapr, "watch", "bob", 60, true)
	}},
	{"errors", func(ctx context.Context, dapr client.Client) error {
		request := &client.LockRequest{ResourceID: "helm", LockOwner: "ann", ExpiryInSeconds: 1}
		_, err := dapr.TryLockAlpha1(ctx, "nowhere", request)
		return refused("an unknown store", err, codes.InvalidArgument, "lock store nowhere not found")
	}},
}

func locked(ctx context.Context, dapr client.Client, resource, owner string, seconds int32, expected bool) error {
	request := &client.LockRequest{ResourceID: resource, LockOwner: owner, ExpiryInSeconds: seconds}
	answer, err := dapr.TryLockAlpha1(ctx, "locks", request)
	if err != nil {
		return err
	}
	return same("lock by "+owner, answer.Success, expected)
}

func unlocked(ctx context.Context, dapr client.Client, resource, owner, expected string) error {
	answer, err := dapr.UnlockAlpha1(ctx, "locks", &client.UnlockRequest{ResourceID: resource, LockOwner: owner})
	if err != nil {
		return err
	}
	return same("unlock by "+owner, answer.Status, expected)
}
