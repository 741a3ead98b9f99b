package main

import (
	"context"
	"errors"
	"time"

	"github.com/dapr/components-contrib/bindings"
)

// loop passes data of the output binding to the input binding, and the app's response back.
type loop struct {
	said chan saying
}

type saying struct {
	data   []byte
	answer chan heard
}

type heard struct {
	data []byte
	err  error
}

func newLoop() *loop {
	return &loop{said: make(chan saying)}
}

// ears is the input binding, which delivers what mouth receives.
type ears struct {
	loop *loop
}

func (*ears) Init(context.Context, bindings.Metadata) error { return nil }

func (*ears) Close() error { return nil }

func (e *ears) Read(ctx context.Context, handler bindings.Handler) error {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case said := <-e.loop.said:
				go func() {
					kind := "text/plain"
					data, err := handler(ctx, &bindings.ReadResponse{
						Data:        said.data,
						Metadata:    map[string]string{"tide": "high"},
						ContentType: &kind,
					})
					said.answer <- heard{data, err}
				}()
			}
		}
	}()
	return nil
}

// mouth is the output binding. Its properties are returned with every response.
type mouth struct {
	loop       *loop
	properties map[string]string
}

func (m *mouth) Init(_ context.Context, metadata bindings.Metadata) error {
	m.properties = metadata.Properties
	return nil
}

func (*mouth) Operations() []bindings.OperationKind {
	return []bindings.OperationKind{"say", "echo"}
}

func (m *mouth) Invoke(ctx context.Context, request *bindings.InvokeRequest) (*bindings.InvokeResponse, error) {
	if request.Operation == "echo" {
		return &bindings.InvokeResponse{Data: request.Data, Metadata: m.properties}, nil
	}
	said := saying{request.Data, make(chan heard, 1)}
	select {
	case m.loop.said <- said:
	case <-time.After(10 * time.Second):
		return nil, errors.New("nobody listens")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case heard := <-said.answer:
		return &bindings.InvokeResponse{Data: heard.data}, heard.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
