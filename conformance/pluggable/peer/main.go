// Pluggable components for the checks: a state store and bindings with Dapr's Go SDK, and a secret store,
// which that SDK does not support, directly on the contract.
package main

import (
	"log"
	"os"
	"path/filepath"

	dapr "github.com/dapr-sandbox/components-go-sdk"
	"github.com/dapr-sandbox/components-go-sdk/bindings/v1"
	"github.com/dapr-sandbox/components-go-sdk/state/v1"
	inmemory "github.com/dapr/components-contrib/state/in-memory"
	"github.com/dapr/kit/logger"
)

func main() {
	folder := os.Getenv("DAPR_COMPONENT_SOCKETS_FOLDER")
	if folder == "" {
		log.Fatal("DAPR_COMPONENT_SOCKETS_FOLDER is not set: the folder of the sockets")
	}
	loop := newLoop()
	dapr.Register("ship",
		dapr.WithStateStore(func() state.Store {
			return inmemory.NewInMemoryStateStore(logger.NewLogger("ship"))
		}),
		dapr.WithInputBinding(func() bindings.InputBinding { return &ears{loop: loop} }),
		dapr.WithOutputBinding(func() bindings.OutputBinding { return &mouth{loop: loop} }),
	)
	go serveSecrets(filepath.Join(folder, "chest.sock"))
	dapr.MustRun()
}
