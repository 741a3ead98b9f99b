package main

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/dapr/durabletask-go/workflow"
	"github.com/dapr/go-sdk/client"
)

// sleeper calls an activity, sleeps for its input in seconds, and calls it again.
func sleeper(ctx *workflow.WorkflowContext) (any, error) {
	var seconds int
	if err := ctx.GetInput(&seconds); err != nil {
		return nil, err
	}
	if err := ctx.CallActivity("step").Await(nil); err != nil {
		return nil, err
	}
	if err := ctx.CreateTimer(time.Duration(seconds) * time.Second).Await(nil); err != nil {
		return nil, err
	}
	return "woke", ctx.CallActivity("step").Await(nil)
}

func step(workflow.ActivityContext) (any, error) {
	return nil, nil
}

// work runs workflows; it retries until the sidecar answers.
func work(ctx context.Context) {
	registry := workflow.NewRegistry()
	if err := errors.Join(registry.AddWorkflowN("sleeper", sleeper), registry.AddActivityN("step", step)); err != nil {
		log.Fatal(err)
	}
	for ctx.Err() == nil {
		flows, err := client.NewWorkflowClient()
		if err == nil {
			err = flows.StartWorker(ctx, registry)
		}
		if err == nil {
			return
		}
		log.Println("no workflows yet:", err)
		time.Sleep(time.Second)
	}
}
