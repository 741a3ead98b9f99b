// Processes an order as a workflow: reserve, pack, ship. usage: app [SECONDS TO PACK]
// After a crash, start the app again: the workflow continues where it stopped.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/dapr/durabletask-go/workflow"
	"github.com/dapr/go-sdk/client"
)

const instance = "order-7"

func run(ctx context.Context, packSeconds int) error {
	registry := workflow.NewRegistry()
	err := errors.Join(registry.AddWorkflow(processOrder), registry.AddActivity(reserve), registry.AddActivity(ship))
	if err != nil {
		return err
	}
	dapr, err := client.NewClient()
	if err != nil {
		return err
	}
	defer dapr.Close()
	flows := workflow.NewClient(dapr.GrpcClientConn())
	if err := flows.StartWorker(ctx, registry); err != nil {
		return err
	}
	if _, err := flows.FetchWorkflowMetadata(ctx, instance); err != nil {
		fmt.Println("starting the workflow", instance)
		input := workflow.WithInput(order{ID: 7, PackSeconds: packSeconds})
		if _, err := flows.ScheduleWorkflow(ctx, "processOrder", input, workflow.WithInstanceID(instance)); err != nil {
			return err
		}
	}
	end, err := flows.WaitForWorkflowCompletion(ctx, instance, workflow.WithFetchPayloads(true))
	if err == nil {
		fmt.Println("the workflow returned:", strings.Trim(end.Output.GetValue(), `"`))
	}
	return err
}

func main() {
	packSeconds := 1
	if len(os.Args) > 1 {
		packSeconds, _ = strconv.Atoi(os.Args[1])
	}
	if err := run(context.Background(), packSeconds); err != nil {
		log.Fatal(err)
	}
}
