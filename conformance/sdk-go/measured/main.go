// The app and the client of scripts/measure-workflows, on the workflow client of Dapr's Go SDK. They are
// separate processes, so that the CPU time of the app is known.
//
//	measured work    runs workflows until SIGTERM
//	measured drive   executes orders on stdin, one JSON object per line, and responds to each with a line of JSON
//
// The sidecar is at $DAPR_GRPC_PORT of loopback.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/dapr/durabletask-go/workflow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// largest is the size limit of a turn with a long history, in bytes.
const largest = 64 << 20

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: measured work|drive")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(what string) error {
	connection, err := grpc.NewClient("127.0.0.1:"+os.Getenv("DAPR_GRPC_PORT"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest), grpc.MaxCallSendMsgSize(largest)))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := workflow.NewClient(connection)
	switch what {
	case "work":
		return work(client)
	case "drive":
		return drive(client)
	}
	return fmt.Errorf("%s: work or drive", what)
}

// work runs workflows until the process is ended.
func work(client *workflow.Client) error {
	registry := workflow.NewRegistry()
	if err := errors.Join(registry.AddActivityN("step", step), registry.AddWorkflowN("measured", measured)); err != nil {
		return err
	}
	if err := client.StartWorker(context.Background(), registry); err != nil {
		return err
	}
	select {}
}

func drive(client *workflow.Client) error {
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var order order
		if err := json.Unmarshal(lines.Bytes(), &order); err != nil {
			return err
		}
		told, err := order.do(client)
		if err != nil {
			return err
		}
		if err := answers.Encode(told); err != nil {
			return err
		}
	}
	return lines.Err()
}
