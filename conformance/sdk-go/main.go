// Checks Dapr's Go SDK against the sidecars that drive.py started.
//
//	checks             makes every check; the last line is 'N passed, N failed'
//	checks app-grpc PORT   an app served with the SDK's gRPC service
//	checks app-http PORT   the same with its HTTP service
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/dapr/go-sdk/client"
)

// timeout is the time limit of a check.
const timeout = 30 * time.Second

// check is one operation of an app; an error describes the failure.
type check struct {
	name string
	run  func(ctx context.Context, dapr client.Client) error
}

// blocks are all checks, by block.
var blocks = []struct {
	name   string
	checks []check
}{
	{"invoke", invokeChecks},
	{"sidecar", sidecarChecks},
	{"state", stateChecks},
	{"secrets", secretChecks},
	{"bindings", bindingChecks},
	{"configuration", configurationChecks},
	{"lock", lockChecks},
	{"crypto", cryptoChecks},
	{"conversation", conversationChecks},
	{"pubsub", pubsubChecks},
	{"jobs", jobChecks},
	{"actors", actorChecks},
	{"workflow", workflowChecks},
}

func main() {
	arguments := os.Args[1:]
	if len(arguments) == 2 && strings.HasPrefix(arguments[0], "app-") {
		if err := serve(arguments[0], arguments[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(all(arguments))
}

// all runs the blocks named, or every one.
func all(names []string) int {
	dapr, err := client.NewClient()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer dapr.Close()
	passed, failed := 0, 0
	for _, block := range blocks {
		if len(names) > 0 && !contains(names, block.name) {
			continue
		}
		for _, check := range block.checks {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			err := check.run(ctx, dapr)
			cancel()
			if err != nil {
				failed++
				fmt.Printf("FAILED  %s: %s: %v\n", block.name, check.name, err)
			} else {
				passed++
				fmt.Printf("ok      %s: %s\n", block.name, check.name)
			}
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		return 1
	}
	return 0
}

func contains(names []string, name string) bool {
	for _, other := range names {
		if other == name {
			return true
		}
	}
	return false
}

// setting is a value that drive.py provides about the fleet.
func setting(name string) string {
	value, ok := os.LookupEnv("CHECK_" + name)
	if !ok {
		panic("CHECK_" + name + " is not set: start this with conformance/sdk-go/run")
	}
	return value
}
