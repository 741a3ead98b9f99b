package main

import (
	"time"

	"github.com/dapr/durabletask-go/workflow"
)

// plan is the input of every workflow.
type plan struct {
	// Fan activities run concurrently, in waves, before anything else.
	Fan int `json:"fan"`
	// Wave bounds the activities of a wave; 0 means all.
	Wave int `json:"wave"`
	// Waits: wait for the event "go" after setting the custom status "ready".
	Waits bool `json:"waits"`
	// Timer is the timeout of that wait in seconds, with a timer; 0 means none.
	Timer int `json:"timer"`
	// Steps are activities in sequence.
	Steps int `json:"steps"`
}

// measured follows its plan and returns the start times of the steps, in nanoseconds since 1970.
func measured(ctx *workflow.WorkflowContext) (any, error) {
	var plan plan
	if err := ctx.GetInput(&plan); err != nil {
		return nil, err
	}
	if err := plan.fanOut(ctx); err != nil {
		return nil, err
	}
	if plan.Waits {
		ctx.SetCustomStatus("ready")
		// A negative time means no timeout and no timer.
		wait := time.Duration(-1)
		if plan.Timer > 0 {
			wait = time.Duration(plan.Timer) * time.Second
		}
		if err := ctx.WaitForExternalEvent("go", wait).Await(nil); err != nil {
			return nil, err
		}
	}
	began := make([]int64, plan.Steps)
	for number := range began {
		if err := ctx.CallActivity("step").Await(&began[number]); err != nil {
			return nil, err
		}
	}
	return began, nil
}

func (plan plan) fanOut(ctx *workflow.WorkflowContext) error {
	wave := plan.Wave
	if wave == 0 {
		wave = plan.Fan
	}
	for left := plan.Fan; left > 0; left -= wave {
		tasks := make([]workflow.Task, min(left, wave))
		for number := range tasks {
			tasks[number] = ctx.CallActivity("step")
		}
		for _, task := range tasks {
			if err := task.Await(nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func step(workflow.ActivityContext) (any, error) {
	return time.Now().UnixNano(), nil
}
