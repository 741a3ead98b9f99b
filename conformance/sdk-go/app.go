package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/dapr/go-sdk/service/common"
	"github.com/dapr/go-sdk/service/grpc"
	"github.com/dapr/go-sdk/service/http"
)

// serve runs an app on a port of loopback until SIGTERM.
func serve(kind, port string) error {
	address := "127.0.0.1:" + port
	var service common.Service
	prefix := ""
	switch kind {
	case "app-grpc":
		var err error
		if service, err = grpc.NewService(address); err != nil {
			return err
		}
	case "app-http":
		service = http.NewService(address)
		prefix = "/"
	default:
		return fmt.Errorf("%s: app-grpc or app-http", kind)
	}
	if err := service.AddServiceInvocationHandler(prefix+"echo", echo); err != nil {
		return err
	}
	if err := first(addBinding(service, prefix+"events"), addEvents(service, prefix)); err != nil {
		return err
	}
	if kind == "app-grpc" {
		if err := addJobs(service); err != nil {
			return err
		}
	} else {
		addActors(service)
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	go func() {
		<-terminate
		os.Exit(0)
	}()
	return service.Start()
}

// echo returns the request, or an error on demand.
func echo(_ context.Context, in *common.InvocationEvent) (*common.Content, error) {
	if string(in.Data) == "refuse" {
		return nil, errors.New("the app refuses")
	}
	answer := in.Verb + " " + in.QueryString + " " + in.ContentType + " " + string(in.Data)
	return &common.Content{Data: []byte(answer), ContentType: "text/plain"}, nil
}
