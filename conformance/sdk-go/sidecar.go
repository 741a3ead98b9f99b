package main

import (
	"context"
	"time"

	"github.com/dapr/go-sdk/client"
)

var sidecarChecks = []check{
	{"waiting for it", func(ctx context.Context, dapr client.Client) error {
		return dapr.Wait(ctx, 10*time.Second)
	}},
	{"metadata", func(ctx context.Context, dapr client.Client) error {
		if err := dapr.SetMetadata(ctx, "anchor", "dropped"); err != nil {
			return err
		}
		metadata, err := dapr.GetMetadata(ctx)
		if err != nil {
			return err
		}
		names := map[string]string{}
		for _, component := range metadata.RegisteredComponents {
			names[component.Name] = component.Type
		}
		return first(
			same("extended", metadata.ExtendedMetadata["anchor"], "dropped"),
			same("id", metadata.ID, setting("CALLER")),
			same("a component", names["sqlite"], "state.sqlite"))
	}},
}
