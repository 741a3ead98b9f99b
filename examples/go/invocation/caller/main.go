// Calls the method `greet` of the app `service`, through both sidecars.
package main

import (
	"context"
	"encoding/json"
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
	content := &client.DataContent{ContentType: "application/json", Data: []byte(`{"name": "Ada"}`)}
	body, err := dapr.InvokeMethodWithContent(context.Background(), "service", "greet", "post", content)
	if err != nil {
		log.Fatal(err)
	}
	var answer struct{ Text string }
	if err := json.Unmarshal(body, &answer); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the service answered:", answer.Text)
}
