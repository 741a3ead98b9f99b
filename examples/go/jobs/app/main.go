// Schedules a job and runs it when the scheduler triggers it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	"github.com/dapr/go-sdk/service/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

func remind(_ context.Context, job *common.JobEvent) error {
	var reminder struct{ Task string }
	if err := json.Unmarshal(job.Data, &reminder); err != nil {
		return err
	}
	fmt.Println("job reminder:", reminder.Task)
	return nil
}

func schedule(ctx context.Context) error {
	dapr, err := client.NewClient()
	if err != nil {
		return err
	}
	defer dapr.Close()
	// The client waits until the sidecar is ready, and the sidecar waits for the app.
	if err := dapr.Wait(ctx, 30*time.Second); err != nil {
		return err
	}
	data := &anypb.Any{Value: []byte(`{"task": "water the plants"}`)}
	job := client.NewJob("reminder", client.WithJobDueTime("1s"), client.WithJobData(data))
	job.Overwrite = true
	fmt.Println("scheduling the job reminder")
	return dapr.ScheduleJobAlpha1(ctx, job)
}

func main() {
	service, err := grpc.NewService("127.0.0.1:" + os.Getenv("APP_PORT"))
	if err != nil {
		log.Fatal(err)
	}
	if err := service.AddJobEventHandler("reminder", remind); err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(service.Start()) }()
	if err := schedule(context.Background()); err != nil {
		log.Fatal(err)
	}
	select {}
}
