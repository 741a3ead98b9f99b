// Package conformance compiles Dapr's published integration suite into one test binary.
package conformance

import (
	"testing"

	"github.com/dapr/dapr/tests/integration"
)

func Test(t *testing.T) {
	integration.RunIntegrationTests(t)
}
