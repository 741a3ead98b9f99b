package main

import (
	"fmt"
	"time"

	"github.com/dapr/durabletask-go/workflow"
)

type order struct {
	ID          int
	PackSeconds int
}

// processOrder reserves, packs and ships an order.
func processOrder(ctx *workflow.WorkflowContext) (any, error) {
	var order order
	if err := ctx.GetInput(&order); err != nil {
		return nil, err
	}
	if err := ctx.CallActivity(reserve, workflow.WithActivityInput(order.ID)).Await(nil); err != nil {
		return nil, err
	}
	if err := ctx.CreateTimer(time.Duration(order.PackSeconds) * time.Second).Await(nil); err != nil {
		return nil, err
	}
	var shipped int
	err := ctx.CallActivity(ship, workflow.WithActivityInput(order.ID)).Await(&shipped)
	return fmt.Sprintf("order %d shipped", shipped), err
}

func reserve(ctx workflow.ActivityContext) (any, error) {
	var id int
	err := ctx.GetInput(&id)
	fmt.Println("reserved the stock for order", id)
	return nil, err
}

func ship(ctx workflow.ActivityContext) (any, error) {
	var id int
	err := ctx.GetInput(&id)
	fmt.Println("shipped order", id)
	return id, err
}
