package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dapr/durabletask-go/workflow"
	"github.com/dapr/go-sdk/client"
	"github.com/google/uuid"
)

// This process is the worker of the caller's workflows.
var workflowChecks = []check{
	{"a chain", func(ctx context.Context, dapr client.Client) error {
		return ended(ctx, dapr, "chain", 5, "40")
	}},
	{"a fan-out", func(ctx context.Context, dapr client.Client) error {
		return ended(ctx, dapr, "fan", 50, "2450")
	}},
	{"many at once", func(ctx context.Context, dapr client.Client) error {
		client, err := worker(dapr)
		if err != nil {
			return err
		}
		ids := make([]string, 30)
		for number := range ids {
			if ids[number], err = client.ScheduleWorkflow(ctx, "chain", workflow.WithInput(number)); err != nil {
				return err
			}
		}
		for number, id := range ids {
			if err := end(ctx, client, id, "COMPLETED", fmt.Sprint(8*number)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"a timer", func(ctx context.Context, dapr client.Client) error {
		before := time.Now()
		err := ended(ctx, dapr, "sleeper", 1, `"woken"`)
		return first(err, same("slept", time.Since(before) >= time.Second, true))
	}},
	{"events, and a timeout without one", func(ctx context.Context, dapr client.Client) error {
		client, id, err := begin(ctx, dapr, "asks", 600)
		if err != nil {
			return err
		}
		if err := client.RaiseEvent(ctx, id, "ANSWER", workflow.WithEventPayload("yes")); err != nil {
			return err
		}
		return first(end(ctx, client, id, "COMPLETED", `"yes"`), ended(ctx, dapr, "asks", 1, `"nothing"`))
	}},
	{"a child", func(ctx context.Context, dapr client.Client) error {
		return ended(ctx, dapr, "parent", 3, "24")
	}},
	{"children are terminated with their parent", func(ctx context.Context, dapr client.Client) error {
		client, id, err := begin(ctx, dapr, "waits", 600)
		if err != nil {
			return err
		}
		if _, err := client.WaitForWorkflowStart(ctx, id+"-child"); err != nil {
			return err
		}
		if err := client.TerminateWorkflow(ctx, id, workflow.WithOutput("enough"), workflow.WithRecursiveTerminate(true)); err != nil {
			return err
		}
		if err := end(ctx, client, id, "TERMINATED", `"enough"`); err != nil {
			return err
		}
		child, err := client.WaitForWorkflowCompletion(ctx, id+"-child")
		return first(err, same("child", child.String(), "TERMINATED"))
	}},
	{"pause and resume", func(ctx context.Context, dapr client.Client) error {
		client, id, err := begin(ctx, dapr, "asks", 600)
		if err != nil {
			return err
		}
		if err := first(client.SuspendWorkflow(ctx, id, "tired"), until(ctx, client, id, "SUSPENDED")); err != nil {
			return err
		}
		if err := client.RaiseEvent(ctx, id, "answer", workflow.WithEventPayload("late")); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond)
		return first(until(ctx, client, id, "SUSPENDED"), client.ResumeWorkflow(ctx, id, "rested"),
			end(ctx, client, id, "COMPLETED", `"late"`))
	}},
	{"purge", func(ctx context.Context, dapr client.Client) error {
		client, id, err := begin(ctx, dapr, "chain", 1)
		if err != nil {
			return err
		}
		if err := first(end(ctx, client, id, "COMPLETED", "8"), client.PurgeWorkflowState(ctx, id)); err != nil {
			return err
		}
		if found, err := client.FetchWorkflowMetadata(ctx, id); err == nil {
			return fmt.Errorf("not purged: %s", found)
		}
		return nil
	}},
	{"retries", func(ctx context.Context, dapr client.Client) error {
		if err := ended(ctx, dapr, "patient", uuid.NewString(), "3"); err != nil {
			return err
		}
		key := uuid.NewString()
		client, id, err := begin(ctx, dapr, "hopeless", key)
		if err != nil {
			return err
		}
		found, err := client.WaitForWorkflowCompletion(ctx, id)
		if err != nil {
			return err
		}
		return first(same("status", found.String(), "FAILED"), same("attempts", attempts(key), 2))
	}},
	{"continue as new", func(ctx context.Context, dapr client.Client) error {
		client, id, err := begin(ctx, dapr, "again", 5)
		if err != nil {
			return err
		}
		if err := client.RaiseEvent(ctx, id, "answer", workflow.WithEventPayload("kept")); err != nil {
			return err
		}
		return end(ctx, client, id, "COMPLETED", `"kept"`)
	}},
	{"history, list, and a run again from an event", func(ctx context.Context, dapr client.Client) error {
		client, id, err := begin(ctx, dapr, "chain", 1)
		if err != nil {
			return err
		}
		if err := end(ctx, client, id, "COMPLETED", "8"); err != nil {
			return err
		}
		history, err := client.GetInstanceHistory(ctx, id)
		if err != nil {
			return err
		}
		listed, err := client.ListInstanceIDs(ctx)
		if err != nil {
			return err
		}
		again, err := client.RerunWorkflowFromEvent(ctx, id, 1, workflow.WithRerunInput(10))
		return first(err, same("events", len(history.Events) > 6, true), same("listed", contains(listed.InstanceIds, id), true),
			same("another", again != id, true), end(ctx, client, again, "COMPLETED", "40"))
	}},
	{"a patch", func(ctx context.Context, dapr client.Client) error {
		return ended(ctx, dapr, "patched", 1, "true")
	}},
	{"errors", func(ctx context.Context, dapr client.Client) error {
		client, id, err := begin(ctx, dapr, "asks", 600)
		if err != nil {
			return err
		}
		_, twice := client.ScheduleWorkflow(ctx, "asks", workflow.WithInstanceID(id), workflow.WithInput(1))
		if twice == nil {
			return errors.New("the same instance twice: went well")
		}
		return first(client.TerminateWorkflow(ctx, id), until(ctx, client, id, "TERMINATED"))
	}},
}

// begin starts an instance.
func begin(ctx context.Context, dapr client.Client, name string, input any) (*workflow.Client, string, error) {
	client, err := worker(dapr)
	if err != nil {
		return nil, "", err
	}
	id, err := client.ScheduleWorkflow(ctx, name, workflow.WithInput(input), workflow.WithInstanceID(uuid.NewString()))
	return client, id, err
}

// end waits for the end of an instance.
func end(ctx context.Context, client *workflow.Client, id, status, output string) error {
	found, err := client.WaitForWorkflowCompletion(ctx, id, workflow.WithFetchPayloads(true))
	if err != nil {
		return err
	}
	return first(same("status of "+id, found.String(), status), same("output", found.Output.GetValue(), output))
}

// ended is nil if an instance completes with this output.
func ended(ctx context.Context, dapr client.Client, name string, input any, output string) error {
	client, id, err := begin(ctx, dapr, name, input)
	if err != nil {
		return err
	}
	return end(ctx, client, id, "COMPLETED", output)
}

// until waits for a status.
func until(ctx context.Context, client *workflow.Client, id, status string) error {
	for {
		found, err := client.FetchWorkflowMetadata(ctx, id)
		if err != nil || found.String() == status {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is %s: %w", id, found, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// worker registers all workflows once, and returns a client.
func worker(dapr client.Client) (*workflow.Client, error) {
	client := workflow.NewClient(dapr.GrpcClientConn())
	workerOnce.Do(func() {
		registry := workflow.NewRegistry()
		for name, flow := range flows {
			workerError = first(workerError, registry.AddWorkflowN(name, flow))
		}
		workerError = first(workerError, registry.AddActivityN("double", double), registry.AddActivityN("flaky", flaky),
			client.StartWorker(context.Background(), registry))
	})
	return client, workerError
}

var (
	workerOnce  sync.Once
	workerError error
	tried       sync.Map
)

// attempts counts the tries of flaky by input.
func attempts(input string) int {
	count, _ := tried.LoadOrStore(input, new(int))
	return *count.(*int)
}

var flows = map[string]workflow.Workflow{
	"chain": func(ctx *workflow.WorkflowContext) (any, error) {
		var number int
		if err := ctx.GetInput(&number); err != nil {
			return nil, err
		}
		for range 3 {
			if err := ctx.CallActivity("double", workflow.WithActivityInput(number)).Await(&number); err != nil {
				return nil, err
			}
		}
		return number, nil
	},
	"fan": func(ctx *workflow.WorkflowContext) (any, error) {
		var count, sum int
		if err := ctx.GetInput(&count); err != nil {
			return nil, err
		}
		tasks := make([]workflow.Task, count)
		for number := range tasks {
			tasks[number] = ctx.CallActivity("double", workflow.WithActivityInput(number))
		}
		for _, task := range tasks {
			var doubled int
			if err := task.Await(&doubled); err != nil {
				return nil, err
			}
			sum += doubled
		}
		return sum, nil
	},
	"sleeper": func(ctx *workflow.WorkflowContext) (any, error) {
		return "woken", ctx.CreateTimer(seconds(ctx)).Await(nil)
	},
	"asks": func(ctx *workflow.WorkflowContext) (any, error) {
		var told string
		if err := ctx.WaitForExternalEvent("answer", seconds(ctx)).Await(&told); err != nil {
			return "nothing", nil
		}
		return told, nil
	},
	"parent": func(ctx *workflow.WorkflowContext) (any, error) {
		var number int
		if err := ctx.GetInput(&number); err != nil {
			return nil, err
		}
		err := ctx.CallChildWorkflow("chain", workflow.WithChildWorkflowInput(number)).Await(&number)
		return number, err
	},
	"waits": func(ctx *workflow.WorkflowContext) (any, error) {
		child := ctx.CallChildWorkflow("asks", workflow.WithChildWorkflowInput(600), workflow.WithChildWorkflowInstanceID(ctx.ID()+"-child"))
		return nil, child.Await(nil)
	},
	"patient":  func(ctx *workflow.WorkflowContext) (any, error) { return retried(ctx, 5) },
	"hopeless": func(ctx *workflow.WorkflowContext) (any, error) { return retried(ctx, 2) },
	"again": func(ctx *workflow.WorkflowContext) (any, error) {
		var rounds int
		if err := ctx.GetInput(&rounds); err != nil {
			return nil, err
		}
		if rounds > 0 {
			ctx.ContinueAsNew(rounds-1, workflow.WithKeepUnprocessedEvents())
			return nil, nil
		}
		var told string
		err := ctx.WaitForExternalEvent("answer", time.Minute).Await(&told)
		return told, err
	},
	"patched": func(ctx *workflow.WorkflowContext) (any, error) {
		before := ctx.IsPatched("sails")
		if err := ctx.CreateTimer(10 * time.Millisecond).Await(nil); err != nil {
			return nil, err
		}
		return before && ctx.IsPatched("sails"), nil
	},
}

func seconds(ctx *workflow.WorkflowContext) time.Duration {
	var count int
	if err := ctx.GetInput(&count); err != nil {
		panic(err)
	}
	return time.Duration(count) * time.Second
}

func retried(ctx *workflow.WorkflowContext, most int) (any, error) {
	var key string
	if err := ctx.GetInput(&key); err != nil {
		return nil, err
	}
	var count int
	err := ctx.CallActivity("flaky", workflow.WithActivityInput(key), workflow.WithActivityRetryPolicy(&workflow.RetryPolicy{
		MaxAttempts: most, InitialRetryInterval: 50 * time.Millisecond, BackoffCoefficient: 1})).Await(&count)
	return count, err
}

func double(ctx workflow.ActivityContext) (any, error) {
	var number int
	err := ctx.GetInput(&number)
	return 2 * number, err
}

// flaky fails twice for each input.
func flaky(ctx workflow.ActivityContext) (any, error) {
	var key string
	if err := ctx.GetInput(&key); err != nil {
		return nil, err
	}
	count, _ := tried.LoadOrStore(key, new(int))
	number := count.(*int)
	*number++
	if *number < 3 {
		return nil, fmt.Errorf("attempt %d", *number)
	}
	return *number, nil
}
