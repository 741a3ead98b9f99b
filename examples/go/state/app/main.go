// Saves, reads, changes and deletes an order in the state store `statestore`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/dapr/go-sdk/client"
)

const store, key = "statestore", "order-7"

func run(ctx context.Context, dapr client.Client) error {
	if err := dapr.SaveState(ctx, store, key, []byte(`{"item": "boat", "amount": 1}`), nil); err != nil {
		return err
	}
	saved, err := dapr.GetState(ctx, store, key, nil)
	if err != nil {
		return err
	}
	var order struct {
		Item   string `json:"item"`
		Amount int    `json:"amount"`
	}
	if err := json.Unmarshal(saved.Value, &order); err != nil {
		return err
	}
	fmt.Println("order 7:", order.Amount, order.Item)

	// The ETag makes the write fail if another process changed the order in between.
	order.Amount = 2
	value, _ := json.Marshal(order)
	firstWrite := client.WithConcurrency(client.StateConcurrencyFirstWrite)
	if err := dapr.SaveStateWithETag(ctx, store, key, value, saved.Etag, nil, firstWrite); err != nil {
		return err
	}
	fmt.Println("order 7:", order.Amount, order.Item)

	// The store applies both operations or neither.
	return dapr.ExecuteStateTransaction(ctx, store, nil, []*client.StateOperation{
		{Type: client.StateOperationTypeUpsert, Item: &client.SetStateItem{Key: "shipped-7", Value: value}},
		{Type: client.StateOperationTypeDelete, Item: &client.SetStateItem{Key: key}},
	})
}

func main() {
	dapr, err := client.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer dapr.Close()
	if err := run(context.Background(), dapr); err != nil {
		log.Fatal(err)
	}
	fmt.Println("order 7 was deleted")
}
