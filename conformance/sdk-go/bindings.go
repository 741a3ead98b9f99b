package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	"google.golang.org/grpc/codes"
)

// clock is an input binding of both apps, files an output binding of the caller's sidecar.
const (
	clock = "clock"
	files = "files"
)

var bindingChecks = []check{
	{"a file is created, read and deleted", func(ctx context.Context, dapr client.Client) error {
		name := map[string]string{"fileName": "log/one.txt"}
		made, err := invokeBinding(ctx, dapr, "create", []byte("ahoy, there"), name)
		if err := first(err, same("answer", string(made), `{"fileName":"log/one.txt"}`)); err != nil {
			return err
		}
		found, err := invokeBinding(ctx, dapr, "get", nil, name)
		if err := first(err, same("content", string(found), "ahoy, there")); err != nil {
			return err
		}
		if _, err := invokeBinding(ctx, dapr, "delete", nil, name); err != nil {
			return err
		}
		_, err = invokeBinding(ctx, dapr, "get", nil, name)
		return refused("a file that was removed", err, codes.Internal, "file not found")
	}},
	{"a call without a response", func(ctx context.Context, dapr client.Client) error {
		name := map[string]string{"fileName": "two.txt"}
		err := dapr.InvokeOutputBinding(ctx, &client.InvokeBindingRequest{
			Name: files, Operation: "create", Data: []byte("two"), Metadata: name})
		if err != nil {
			return err
		}
		found, err := invokeBinding(ctx, dapr, "get", nil, name)
		return first(err, same("content", string(found), "two"))
	}},
	{"events reach an app that speaks HTTP", func(ctx context.Context, dapr client.Client) error {
		return woken(ctx, dapr, setting("HTTP_APP"))
	}},
	{"events reach an app that speaks gRPC", func(ctx context.Context, dapr client.Client) error {
		return woken(ctx, dapr, setting("GRPC_APP"))
	}},
	{"errors", func(ctx context.Context, dapr client.Client) error {
		_, sings := invokeBinding(ctx, dapr, "sing", nil, nil)
		_, nowhere := dapr.InvokeBinding(ctx, &client.InvokeBindingRequest{Name: "nowhere", Operation: "get"})
		return first(
			refused("an unknown operation", sings, codes.Internal, "does not support operation sing"),
			refused("an unknown binding", nowhere, codes.Internal, "couldn't find output binding nowhere"))
	}},
}

func invokeBinding(
	ctx context.Context, dapr client.Client, operation string, data []byte, metadata map[string]string,
) ([]byte, error) {
	event, err := dapr.InvokeBinding(ctx, &client.InvokeBindingRequest{
		Name: files, Operation: operation, Data: data, Metadata: metadata})
	if err != nil {
		return nil, err
	}
	return event.Data, nil
}

// woken waits until the app has counted two more events.
func woken(ctx context.Context, dapr client.Client, app string) error {
	counted := func() (int, error) {
		answer, err := dapr.InvokeMethod(ctx, app, "events", "get")
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(string(answer))
	}
	before, err := counted()
	if err != nil {
		return err
	}
	for {
		now, err := counted()
		if err != nil || now >= before+2 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d events so far: %w", now, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

var events atomic.Int64

// addBinding makes the app count events of the clock and report the number.
func addBinding(service common.Service, method string) error {
	count := func(_ context.Context, in *common.BindingEvent) ([]byte, error) {
		// Over HTTP, an event's metadata are among the headers.
		name := "readTimeUTC"
		if in.Metadata[name] == "" && in.Metadata[http.CanonicalHeaderKey(name)] == "" {
			return nil, errors.New("the event has no time")
		}
		events.Add(1)
		return nil, nil
	}
	tell := func(context.Context, *common.InvocationEvent) (*common.Content, error) {
		return &common.Content{Data: []byte(strconv.FormatInt(events.Load(), 10)), ContentType: "text/plain"}, nil
	}
	if err := service.AddBindingInvocationHandler(clock, count); err != nil {
		return err
	}
	return service.AddServiceInvocationHandler(method, tell)
}
