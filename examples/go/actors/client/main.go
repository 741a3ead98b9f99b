// Increments the counter `visits` three times.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/dapr/go-sdk/client"
)

// The SDK fills in the methods of the stub.
type counter struct {
	Increment func(context.Context, int) (int, error)
}

func (c *counter) Type() string { return "Counter" }
func (c *counter) ID() string   { return "visits" }

func main() {
	dapr, err := client.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer dapr.Close()
	visits := &counter{}
	dapr.ImplActorClientStub(visits)
	for range 3 {
		count, err := visits.Increment(context.Background(), 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("counter visits:", count)
	}
}
