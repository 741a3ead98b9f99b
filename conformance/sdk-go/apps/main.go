// Apps on Dapr's Go SDK that the official CLI runs with our sidecars.
//
//	apps service PORT      over gRPC: schedules jobs on request, and prints those it receives
//	apps caller SERVICE    calls the service through both sidecars
//	apps order             a workflow, with worker and client in this process
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dapr/durabletask-go/workflow"
	"github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	daprd "github.com/dapr/go-sdk/service/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

const job = "voyage"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(words []string) error {
	switch {
	case len(words) == 2 && words[0] == "service":
		return serve(words[1])
	case len(words) == 2 && words[0] == "caller":
		return call(words[1])
	case len(words) == 1 && words[0] == "order":
		return place()
	}
	return errors.New("usage: apps service PORT|caller SERVICE|order")
}

func serve(port string) error {
	dapr, err := client.NewClient()
	if err != nil {
		return err
	}
	defer dapr.Close()
	server, err := daprd.NewService("127.0.0.1:" + port)
	if err != nil {
		return err
	}
	plan := func(ctx context.Context, _ *common.InvocationEvent) (*common.Content, error) {
		planned := client.NewJob(job, client.WithJobDueTime("1s"), client.WithJobData(&anypb.Any{Value: []byte("salt")}))
		planned.Overwrite = true
		if err := dapr.ScheduleJobAlpha1(ctx, planned); err != nil {
			return nil, err
		}
		found, err := dapr.GetJobAlpha1(ctx, job)
		if err != nil {
			return nil, err
		}
		return &common.Content{Data: []byte(*found.DueTime), ContentType: "text/plain"}, nil
	}
	take := func(_ context.Context, event *common.JobEvent) error {
		fmt.Println("took job", job, string(event.Data))
		return nil
	}
	err = errors.Join(server.AddServiceInvocationHandler("plan", plan), server.AddJobEventHandler(job, take))
	if err != nil {
		return err
	}
	return server.Start()
}

// call retries until the service responds.
func call(service string) error {
	dapr, err := client.NewClient()
	if err != nil {
		return err
	}
	defer dapr.Close()
	for {
		planned, err := dapr.InvokeMethod(context.Background(), service, "plan", "post")
		if err == nil {
			fmt.Println("planned", string(planned))
			return nil
		}
		fmt.Println("not yet:", err)
		time.Sleep(500 * time.Millisecond)
	}
}

func order(ctx *workflow.WorkflowContext) (any, error) {
	var item, shipped string
	if err := ctx.GetInput(&item); err != nil {
		return nil, err
	}
	if err := ctx.CallActivity("reserve", workflow.WithActivityInput(item)).Await(nil); err != nil {
		return nil, err
	}
	err := ctx.CallActivity("ship", workflow.WithActivityInput(item)).Await(&shipped)
	return shipped, err
}

// activity processes an item.
func activity(do func(item string) any) workflow.Activity {
	return func(ctx workflow.ActivityContext) (any, error) {
		var item string
		err := ctx.GetInput(&item)
		return do(item), err
	}
}

func place() error {
	reserve := func(item string) any {
		fmt.Println("reserved", item)
		return nil
	}
	ship := func(item string) any { return item + " shipped" }
	registry := workflow.NewRegistry()
	err := errors.Join(registry.AddWorkflowN("order", order), registry.AddActivityN("reserve", activity(reserve)),
		registry.AddActivityN("ship", activity(ship)))
	if err != nil {
		return err
	}
	flows, err := client.NewWorkflowClient()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := flows.StartWorker(ctx, registry); err != nil {
		return err
	}
	id, err := flows.ScheduleWorkflow(ctx, "order", workflow.WithInput("anchor"))
	if err != nil {
		return err
	}
	ended, err := flows.WaitForWorkflowCompletion(ctx, id, workflow.WithFetchPayloads(true))
	if err != nil {
		return err
	}
	fmt.Printf("workflow %v: %s\n", ended, ended.Output.GetValue())
	// The CLI may lose the last lines of an app that exits.
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-interrupted.Done()
	return nil
}
