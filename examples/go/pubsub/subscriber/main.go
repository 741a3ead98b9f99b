// Receives the orders that are published on the topic `orders`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/dapr/go-sdk/service/common"
	"github.com/dapr/go-sdk/service/http"
)

// Delivery is at least once: a handler that changes something must be idempotent.
func receive(_ context.Context, event *common.TopicEvent) (retry bool, err error) {
	var order struct{ ID int }
	if err := event.Struct(&order); err != nil {
		return false, err
	}
	fmt.Println("received order", order.ID)
	return false, nil
}

func main() {
	service := http.NewService("127.0.0.1:" + os.Getenv("APP_PORT"))
	subscription := &common.Subscription{PubsubName: "pubsub", Topic: "orders", Route: "/orders"}
	if err := service.AddTopicEventHandler(subscription, receive); err != nil {
		log.Fatal(err)
	}
	log.Fatal(service.Start())
}
