package main

import (
	"bytes"
	"context"
	"strings"

	"github.com/dapr/go-sdk/client"
	"google.golang.org/grpc/codes"
)

var invokeChecks = []check{
	{"a call of an app that speaks HTTP", func(ctx context.Context, dapr client.Client) error {
		return invoked(ctx, dapr, setting("HTTP_APP"))
	}},
	{"a call of an app that speaks gRPC", func(ctx context.Context, dapr client.Client) error {
		return invoked(ctx, dapr, setting("GRPC_APP"))
	}},
	{"a call without content", func(ctx context.Context, dapr client.Client) error {
		answer, err := dapr.InvokeMethod(ctx, setting("HTTP_APP"), "echo?depth=3", "get")
		return first(err, same("answer", strings.Fields(string(answer)), []string{"GET", "depth=3"}))
	}},
	{"a megabyte there and back", func(ctx context.Context, dapr client.Client) error {
		data := bytes.Repeat([]byte("water"), 200_000)
		content := &client.DataContent{Data: data, ContentType: "text/plain"}
		for _, app := range []string{setting("HTTP_APP"), setting("GRPC_APP")} {
			answer, err := dapr.InvokeMethodWithContent(ctx, app, "echo", "post", content)
			if err := first(err, same("ends with it", bytes.HasSuffix(answer, data), true)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"an app that refuses", func(ctx context.Context, dapr client.Client) error {
		content := &client.DataContent{Data: []byte("refuse"), ContentType: "text/plain"}
		_, http := dapr.InvokeMethodWithContent(ctx, setting("HTTP_APP"), "echo", "post", content)
		_, grpc := dapr.InvokeMethodWithContent(ctx, setting("GRPC_APP"), "echo", "post", content)
		return first(refused("over HTTP", http, codes.Unknown, "Internal Server Error"), refused("over gRPC", grpc, codes.Unknown, ""))
	}},
	{"an unknown app", func(ctx context.Context, dapr client.Client) error {
		_, err := dapr.InvokeMethod(ctx, "nobody", "echo", "get")
		return refused("call", err, codes.Internal, "failed to invoke, id: nobody")
	}},
}

func invoked(ctx context.Context, dapr client.Client, app string) error {
	content := &client.DataContent{Data: []byte("ahoy"), ContentType: "text/plain"}
	answer, err := dapr.InvokeMethodWithContent(ctx, app, "echo?depth=3", "put", content)
	return first(err, same("answer", string(answer), "PUT depth=3 text/plain ahoy"))
}
