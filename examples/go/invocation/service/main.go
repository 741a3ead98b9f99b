// A service that greets its callers over HTTP.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/dapr/go-sdk/service/common"
	"github.com/dapr/go-sdk/service/http"
)

func greet(_ context.Context, in *common.InvocationEvent) (*common.Content, error) {
	var greeting struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(in.Data, &greeting); err != nil {
		return nil, err
	}
	fmt.Println("greeting", greeting.Name)
	answer, err := json.Marshal(map[string]string{"text": "Hello, " + greeting.Name + "!"})
	return &common.Content{Data: answer, ContentType: "application/json"}, err
}

func main() {
	service := http.NewService("127.0.0.1:" + os.Getenv("APP_PORT"))
	if err := service.AddServiceInvocationHandler("/greet", greet); err != nil {
		log.Fatal(err)
	}
	log.Fatal(service.Start())
}
