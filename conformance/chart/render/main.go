// Renders a chart as Helm does, with Helm's own library, for many sets of values at once.
//
// usage: render CHART <CASES >OBJECTS
//
// CASES is a JSON list of {"name", "namespace", "release", "values"}; values are checked against the schema of the chart.
// OBJECTS is a JSON object: by name either {"objects": [...]} or {"error": "..."}; "crds" are the definitions,
// "values" is one object: the values of the chart and of its parts.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

type testCase struct {
	Name      string         `json:"name"`
	Namespace string         `json:"namespace"`
	Release   string         `json:"release"`
	Values    map[string]any `json:"values"`
}

type rendered struct {
	Objects []any  `json:"objects"`
	Error   string `json:"error,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: render CHART <CASES >OBJECTS")
	}
	var cases []testCase
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		return fmt.Errorf("the cases: %w", err)
	}
	answers := map[string]rendered{}
	for _, one := range cases {
		// Rendering changes a chart: disabled sub-charts are removed.
		loaded, err := loader.Load(os.Args[1])
		if err != nil {
			return err
		}
		if _, done := answers["crds"]; !done {
			definitions, err := crds(loaded)
			if err != nil {
				return err
			}
			answers["crds"] = rendered{Objects: definitions}
			values, err := chartutil.CoalesceValues(loaded, nil)
			if err != nil {
				return err
			}
			answers["values"] = rendered{Objects: []any{values}}
		}
		objects, err := render(loaded, one)
		if err != nil {
			answers[one.Name] = rendered{Error: err.Error()}
			continue
		}
		answers[one.Name] = rendered{Objects: objects}
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

func render(loaded *chart.Chart, one testCase) ([]any, error) {
	if err := chartutil.ProcessDependencies(loaded, one.Values); err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{Name: one.Release, Namespace: one.Namespace, Revision: 1, IsInstall: true}
	values, err := chartutil.ToRenderValues(loaded, one.Values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{}.Render(loaded, values)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	objects := []any{}
	for _, name := range names {
		if len(name) < 5 || name[len(name)-5:] != ".yaml" {
			continue
		}
		found, err := documents(name, files[name])
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

func crds(loaded *chart.Chart) ([]any, error) {
	objects := []any{}
	for _, file := range loaded.CRDObjects() {
		found, err := documents(file.Name, string(file.File.Data))
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	return objects, nil
}

func documents(name, text string) ([]any, error) {
	objects := []any{}
	split := releaseutil.SplitManifests(text)
	keys := make([]string, 0, len(split))
	for key := range split {
		keys = append(keys, key)
	}
	sort.Sort(releaseutil.BySplitManifestsOrder(keys))
	for _, key := range keys {
		var object any
		// Strict: a duplicate key is a mistake in a template.
		if err := yaml.UnmarshalStrict([]byte(split[key]), &object); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, split[key])
		}
		if object != nil {
			objects = append(objects, object)
		}
	}
	return objects, nil
}
