// Checks files of rules with Prometheus's own parser, for ../check: built by conformance/build.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	failed := 0
	for _, file := range os.Args[1:] {
		_, problems := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
		for _, problem := range problems {
			fmt.Println(problem)
		}
		failed += len(problems)
	}
	if failed > 0 {
		os.Exit(1)
	}
}
