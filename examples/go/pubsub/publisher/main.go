// Publishes three orders on the topic `orders`.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/dapr/go-sdk/client"
)

func main() {
	dapr, err := client.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer dapr.Close()
	for number := 1; number <= 3; number++ {
		if err := dapr.PublishEvent(context.Background(), "pubsub", "orders", map[string]int{"id": number}); err != nil {
			log.Fatal(err)
		}
		fmt.Println("published order", number)
	}
}
