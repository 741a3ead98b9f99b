package main

import (
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// same is nil when both are equal.
func same(what string, got, expected any) error {
	if reflect.DeepEqual(got, expected) {
		return nil
	}
	return fmt.Errorf("%s: got %#v, expected %#v", what, got, expected)
}

// refused is nil if err is a gRPC error with this code and text.
func refused(what string, err error, code codes.Code, words string) error {
	if err == nil {
		return fmt.Errorf("%s: went well, expected %s", what, code)
	}
	if status.Code(err) != code || !strings.Contains(err.Error(), words) {
		return fmt.Errorf("%s: got %w, expected %s and %q", what, err, code, words)
	}
	return nil
}

// first is the first error, if any.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
