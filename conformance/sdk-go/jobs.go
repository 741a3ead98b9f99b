package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
)

// The SDK handles jobs in apps that speak gRPC only.
var jobChecks = []check{
	{"a job lives from schedule to delete", func(ctx context.Context, _ client.Client) error {
		dapr, err := beside("GRPC_PORT")
		if err != nil {
			return err
		}
		defer dapr.Close()
		job := client.NewJob("kept", client.WithJobSchedule("@every 1h"), client.WithJobRepeats(7), client.WithJobData(cargo("salt")),
			client.WithJobConstantFailurePolicyMaxRetries(4), client.WithJobConstantFailurePolicyInterval(9*time.Second))
		if err := dapr.ScheduleJobAlpha1(ctx, job); err != nil {
			return err
		}
		found, err := dapr.GetJobAlpha1(ctx, "kept")
		if err != nil {
			return err
		}
		policy, ok := found.FailurePolicy.(*client.JobFailurePolicyConstant)
		if !ok {
			return fmt.Errorf("failure policy: %#v", found.FailurePolicy)
		}
		err = first(same("schedule", *found.Schedule, "@every 1h"), same("repeats", *found.Repeats, uint32(7)),
			same("data", string(found.Data.GetValue()), "salt"), same("retries", *policy.MaxRetries, uint32(4)),
			same("interval", *policy.Interval, 9*time.Second))
		if err != nil {
			return err
		}
		other := client.NewJob("kept", client.WithJobSchedule("@daily"), client.WithJobDropFailurePolicy())
		if err := refused("the same name", dapr.ScheduleJobAlpha1(ctx, other), codes.AlreadyExists, "already exists"); err != nil {
			return err
		}
		other.Overwrite = true
		if err := dapr.ScheduleJobAlpha1(ctx, other); err != nil {
			return err
		}
		found, err = dapr.GetJobAlpha1(ctx, "kept")
		if err != nil {
			return err
		}
		if _, ok := found.FailurePolicy.(*client.JobFailurePolicyDrop); !ok {
			return fmt.Errorf("failure policy: %#v", found.FailurePolicy)
		}
		if err := first(same("schedule", *found.Schedule, "@daily"), dapr.DeleteJobAlpha1(ctx, "kept")); err != nil {
			return err
		}
		return gone(ctx, dapr, "kept")
	}},
	{"an app gets every due trigger", func(ctx context.Context, caller client.Client) error {
		dapr, err := beside("GRPC_PORT")
		if err != nil {
			return err
		}
		defer dapr.Close()
		for name, count := range map[string]int{"once": 1, "thrice": 3} {
			timing := client.WithJobDueTime("100ms")
			if count > 1 {
				timing = client.WithJobSchedule("@every 200ms")
			}
			job := client.NewJob(name, timing, client.WithJobRepeats(uint32(count)), client.WithJobData(cargo(name)))
			if err := dapr.ScheduleJobAlpha1(ctx, job); err != nil {
				return err
			}
			if _, err := taken(ctx, caller, "GRPC_APP", name, count, name); err != nil {
				return err
			}
			if err := gone(ctx, dapr, name); err != nil {
				return err
			}
			triggers, err := taken(ctx, caller, "GRPC_APP", name, count, name)
			if err := first(err, same(name, len(triggers), count)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"failed jobs are retried", func(ctx context.Context, caller client.Client) error {
		dapr, err := beside("GRPC_PORT")
		if err != nil {
			return err
		}
		defer dapr.Close()
		job := client.NewJob("fails", client.WithJobDueTime("0s"), client.WithJobData(cargo("leak")),
			client.WithJobConstantFailurePolicyMaxRetries(5), client.WithJobConstantFailurePolicyInterval(50*time.Millisecond))
		if err := dapr.ScheduleJobAlpha1(ctx, job); err != nil {
			return err
		}
		if _, err := taken(ctx, caller, "GRPC_APP", "fails", 3, "leak"); err != nil {
			return err
		}
		return gone(ctx, dapr, "fails")
	}},
	{"errors", func(ctx context.Context, _ client.Client) error {
		dapr, err := beside("GRPC_PORT")
		if err != nil {
			return err
		}
		defer dapr.Close()
		never := dapr.ScheduleJobAlpha1(ctx, client.NewJob("bad", client.WithJobData(cargo(""))))
		wrong := dapr.ScheduleJobAlpha1(ctx, client.NewJob("bad", client.WithJobSchedule("sometimes")))
		if wrong == nil || !strings.Contains(wrong.Error(), "failed to schedule job") {
			return fmt.Errorf("a malformed schedule: %w", wrong)
		}
		return refused("no schedule", never, codes.InvalidArgument, "Schedule is empty")
	}},
}

func cargo(text string) *anypb.Any {
	return &anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.BytesValue", Value: []byte(text)}
}

// beside is a client of the sidecar of an app.
func beside(port string) (client.Client, error) {
	return client.NewClientWithPort(setting(port))
}

// gone waits until a job is gone, which happens once the response to its last trigger is stored.
func gone(ctx context.Context, dapr client.Client, name string) error {
	for {
		_, err := dapr.GetJobAlpha1(ctx, name)
		if err != nil {
			return refused("a job that is gone", err, codes.Internal, "not found")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the job %s is still there: %w", name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// addJobs makes the app handle jobs.
func addJobs(service common.Service) error {
	for _, name := range []string{"once", "thrice", "fails"} {
		handle := func(_ context.Context, job *common.JobEvent) error {
			if count := kept.add(name, seen{Data: string(job.Data)}); name == "fails" && count < 3 {
				return errors.New("not yet")
			}
			return nil
		}
		if err := service.AddJobEventHandler(name, handle); err != nil {
			return err
		}
	}
	return nil
}
