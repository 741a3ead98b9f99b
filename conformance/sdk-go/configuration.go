package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/dapr/go-sdk/client"
	"google.golang.org/grpc/codes"
)

// settings is a store in which drive.py keeps `still` constant and increments `ticking` ten times a second.
const settings = "settings"

var configurationChecks = []check{
	{"values", func(ctx context.Context, dapr client.Client) error {
		items, err := dapr.GetConfigurationItems(ctx, settings, []string{"still", "none"})
		if err := first(err, same("how many", len(items), 1)); err != nil {
			return err
		}
		item, err := dapr.GetConfigurationItem(ctx, settings, "still")
		if err != nil {
			return err
		}
		return first(same("value", item.Value, "water"), same("version", item.Version, "7"))
	}},
	{"changes arrive until unsubscribed", func(ctx context.Context, dapr client.Client) error {
		changes := make(chan string, 1000)
		told := func(_ string, items map[string]*client.ConfigurationItem) {
			for key, item := range items {
				if key != "ticking" {
					changes <- key + " was not asked for"
				}
				changes <- item.Value
			}
		}
		id, err := dapr.SubscribeConfigurationItems(ctx, settings, []string{"ticking"}, told)
		if err != nil {
			return err
		}
		last := 0
		for range 3 {
			select {
			case text := <-changes:
				number, err := strconv.Atoi(text)
				if err != nil || number <= last {
					return fmt.Errorf("after %d came %s", last, text)
				}
				last = number
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := dapr.UnsubscribeConfigurationItems(ctx, settings, id); err != nil {
			return err
		}
		// Changes in flight may still arrive.
		time.Sleep(200 * time.Millisecond)
		for len(changes) > 0 {
			<-changes
		}
		time.Sleep(500 * time.Millisecond)
		if err := same("changes afterwards", len(changes), 0); err != nil {
			return err
		}
		again := dapr.UnsubscribeConfigurationItems(ctx, settings, id)
		if again == nil {
			return fmt.Errorf("a subscription can be ended twice")
		}
		return nil
	}},
	{"errors", func(ctx context.Context, dapr client.Client) error {
		_, err := dapr.GetConfigurationItem(ctx, "nowhere", "k")
		return refused("an unknown store", err, codes.InvalidArgument, "configuration store nowhere not found")
	}},
}
