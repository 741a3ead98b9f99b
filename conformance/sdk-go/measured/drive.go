package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dapr/durabletask-go/workflow"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// mostTold is the most stuck instances that are reported separately.
	mostTold = 5
	// pause is the interval of polling a custom status.
	pause = 20 * time.Millisecond
)

// order is a command for the instances "<Prefix>-0" to "<Prefix>-<Count - 1>".
type order struct {
	// Do is one of
	//   run    start them, and wait until they have ended
	//   start  start them, and wait until they have had a first turn
	//   ready  wait until their custom status is "ready"
	//   wake   raise the event "go", and wait until they have ended
	Do     string          `json:"do"`
	Prefix string          `json:"prefix"`
	Plan   json.RawMessage `json:"plan"`
	Count  int             `json:"count"`
	// AtOnce bounds the instances in flight.
	AtOnce int `json:"at_once"`
	// Timeout is the time limit of one instance, in seconds.
	Timeout float64 `json:"timeout"`
}

// report is the result of an order.
type report struct {
	Seconds float64 `json:"seconds"`
	Done    int     `json:"done"`
	// Stuck counts the instances that failed or timed out; Why has the reasons of the first ones.
	Stuck int      `json:"stuck"`
	Why   []string `json:"why"`
	// Whole are the durations of the instances in milliseconds, and Steps those from the start of an activity to
	// the start of the next one, both sorted.
	Whole []float64 `json:"whole"`
	Steps []float64 `json:"steps"`

	lock sync.Mutex
}

func (order order) do(client *workflow.Client) (*report, error) {
	action, ok := map[string]func(context.Context, *workflow.Client, string) ([]int64, error){
		"run": order.run, "start": order.start, "ready": order.ready, "wake": order.wake,
	}[order.Do]
	if !ok {
		return nil, fmt.Errorf("%s: run, start, ready or wake", order.Do)
	}
	told := &report{Why: []string{}, Whole: []float64{}, Steps: []float64{}}
	began := time.Now()
	numbers := make(chan int)
	var all sync.WaitGroup
	for range min(order.AtOnce, order.Count) {
		all.Add(1)
		go func() {
			defer all.Done()
			for number := range numbers {
				id := fmt.Sprintf("%s-%d", order.Prefix, number)
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(order.Timeout*float64(time.Second)))
				begin := time.Now()
				steps, err := action(ctx, client, id)
				told.add(client, id, milliseconds(time.Since(begin)), steps, err)
				cancel()
			}
		}()
	}
	for number := range order.Count {
		numbers <- number
	}
	close(numbers)
	all.Wait()
	told.Seconds = time.Since(began).Seconds()
	slices.Sort(told.Whole)
	slices.Sort(told.Steps)
	return told, nil
}

func (order order) run(ctx context.Context, client *workflow.Client, id string) ([]int64, error) {
	if err := order.schedule(ctx, client, id); err != nil {
		return nil, err
	}
	return ended(ctx, client, id)
}

func (order order) start(ctx context.Context, client *workflow.Client, id string) ([]int64, error) {
	if err := order.schedule(ctx, client, id); err != nil {
		return nil, err
	}
	_, err := client.WaitForWorkflowStart(ctx, id)
	return nil, err
}

func (order order) schedule(ctx context.Context, client *workflow.Client, id string) error {
	_, err := client.ScheduleWorkflow(ctx, "measured", workflow.WithInstanceID(id),
		workflow.WithRawInput(wrapperspb.String(string(order.Plan))))
	return err
}

func (order) ready(ctx context.Context, client *workflow.Client, id string) ([]int64, error) {
	for {
		// The custom status is part of the payloads.
		found, err := client.FetchWorkflowMetadata(ctx, id, workflow.WithFetchPayloads(true))
		if err != nil {
			return nil, err
		}
		if found.CustomStatus.GetValue() == "ready" {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (order) wake(ctx context.Context, client *workflow.Client, id string) ([]int64, error) {
	if err := client.RaiseEvent(ctx, id, "go"); err != nil {
		return nil, err
	}
	return ended(ctx, client, id)
}

// ended waits for the end of an instance and returns the times of its steps.
func ended(ctx context.Context, client *workflow.Client, id string) ([]int64, error) {
	found, err := client.WaitForWorkflowCompletion(ctx, id, workflow.WithFetchPayloads(true))
	if err != nil {
		return nil, err
	}
	if found.String() != "COMPLETED" {
		return nil, fmt.Errorf("%s: %s", found, found.FailureDetails.GetErrorMessage())
	}
	var began []int64
	err = json.Unmarshal([]byte(found.Output.GetValue()), &began)
	return began, err
}

// add counts an instance; a stuck one is checked once more.
func (told *report) add(client *workflow.Client, id string, took float64, began []int64, err error) {
	why := ""
	if err != nil {
		why = fmt.Sprintf("%s: %v; it is %s", id, err, state(client, id))
	}
	told.lock.Lock()
	defer told.lock.Unlock()
	if err != nil {
		told.Stuck++
		if len(told.Why) < mostTold {
			told.Why = append(told.Why, why)
		}
		return
	}
	told.Done++
	told.Whole = append(told.Whole, took)
	for number := 1; number < len(began); number++ {
		told.Steps = append(told.Steps, milliseconds(time.Duration(began[number]-began[number-1])))
	}
}

func state(client *workflow.Client, id string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	found, err := client.FetchWorkflowMetadata(ctx, id)
	if err != nil {
		return err.Error()
	}
	return found.String()
}

func milliseconds(time time.Duration) float64 {
	return float64(time.Nanoseconds()) / 1e6
}
