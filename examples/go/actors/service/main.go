// Hosts actors of the type `Counter`, whose count is in the state store.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/dapr/go-sdk/actor"
	"github.com/dapr/go-sdk/service/http"
)

// Counter is exported because the SDK finds its methods by reflection.
type Counter struct {
	actor.ServerImplBaseCtx
}

func (c *Counter) Type() string { return "Counter" }

// Increment loses no increment: calls to one actor run one at a time.
func (c *Counter) Increment(ctx context.Context, by int) (int, error) {
	state := c.GetStateManager()
	count := 0
	found, err := state.Contains(ctx, "count")
	if err == nil && found {
		err = state.Get(ctx, "count", &count)
	}
	if err != nil {
		return 0, err
	}
	count += by
	fmt.Println(c.ID(), "is incremented to", count)
	return count, state.Set(ctx, "count", count)
}

func main() {
	service := http.NewService("127.0.0.1:" + os.Getenv("APP_PORT"))
	service.RegisterActorImplFactoryContext(func() actor.ServerContext { return &Counter{} })
	log.Fatal(service.Start())
}
