package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dapr/go-sdk/actor"
	"github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	"github.com/google/uuid"
)

// The HTTP app hosts ships; the SDK hosts no actors over gRPC.
var actorChecks = []check{
	{"turns come one after another", func(ctx context.Context, dapr client.Client) error {
		ship := newShip(dapr)
		var group sync.WaitGroup
		totals, errs := make(chan int, 30), make(chan error, 30)
		for range 30 {
			group.Add(1)
			go func() {
				defer group.Done()
				total, err := ship.Load(ctx, 1)
				totals <- total
				errs <- err
			}()
		}
		group.Wait()
		seen := map[int]bool{}
		for range 30 {
			seen[<-totals] = true
			if err := <-errs; err != nil {
				return err
			}
		}
		total, err := ship.Cargo(ctx)
		return first(err, same("totals", len(seen), 30), same("cargo", total, 30))
	}},
	{"many actors", func(ctx context.Context, dapr client.Client) error {
		for number := range 30 {
			total, err := newShip(dapr).Load(ctx, number)
			if err := first(err, same("cargo", total, number)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"state that its host reads and writes", func(ctx context.Context, dapr client.Client) error {
		host, err := beside("HTTP_PORT")
		if err != nil {
			return err
		}
		defer host.Close()
		ship := newShip(dapr)
		if _, err := ship.Load(ctx, 5); err != nil {
			return err
		}
		state, err := host.GetActorState(ctx, &client.GetActorStateRequest{ActorType: "Ship", ActorID: ship.id, KeyName: "tons"})
		if err != nil {
			return err
		}
		ttl := int64(600)
		err = first(
			same("state", string(state.Data), "5"),
			host.SaveStateTransactionally(ctx, "Ship", ship.id, []*client.ActorStateOperation{
				{OperationType: "upsert", Key: "flag", Value: []byte("red"), TTLInSeconds: &ttl},
				{OperationType: "delete", Key: "tons"}}))
		if err != nil {
			return err
		}
		flag, err := host.GetActorState(ctx, &client.GetActorStateRequest{ActorType: "Ship", ActorID: ship.id, KeyName: "flag"})
		if err != nil {
			return err
		}
		tons, err := host.GetActorState(ctx, &client.GetActorStateRequest{ActorType: "Ship", ActorID: ship.id, KeyName: "tons"})
		return first(err, same("flag", string(flag.Data), "red"), same("tons", string(tons.Data), ""))
	}},
	{"timers", func(ctx context.Context, dapr client.Client) error {
		host, err := beside("HTTP_PORT")
		if err != nil {
			return err
		}
		defer host.Close()
		ship := newShip(dapr)
		if _, err := ship.Load(ctx, 1); err != nil {
			return err
		}
		err = host.RegisterActorTimer(ctx, &client.RegisterActorTimerRequest{
			ActorType: "Ship", ActorID: ship.id, Name: "watch", DueTime: "100ms", Period: "100ms", CallBack: "Tick", Data: []byte(`"bell"`)})
		if err != nil {
			return err
		}
		if err := ship.hears(ctx, "timer bell", 3); err != nil {
			return err
		}
		err = host.UnregisterActorTimer(ctx, &client.UnregisterActorTimerRequest{ActorType: "Ship", ActorID: ship.id, Name: "watch"})
		return first(err, ship.quiet(ctx))
	}},
	{"reminders", func(ctx context.Context, dapr client.Client) error {
		host, err := beside("HTTP_PORT")
		if err != nil {
			return err
		}
		defer host.Close()
		ship := newShip(dapr)
		err = host.RegisterActorReminder(ctx, &client.RegisterActorReminderRequest{
			ActorType: "Ship", ActorID: ship.id, Name: "tide", DueTime: "100ms", Period: "100ms", Data: []byte("high")})
		if err != nil {
			return err
		}
		if err := ship.hears(ctx, "reminder tide high", 3); err != nil {
			return err
		}
		err = host.UnregisterActorReminder(ctx, &client.UnregisterActorReminderRequest{ActorType: "Ship", ActorID: ship.id, Name: "tide"})
		return first(err, ship.quiet(ctx))
	}},
	{"errors", func(ctx context.Context, dapr client.Client) error {
		if _, err := newShip(dapr).Sink(ctx); err == nil {
			return errors.New("a failing turn succeeded")
		}
		_, unknown := dapr.InvokeActor(ctx, &client.InvokeActorRequest{ActorType: "Plane", ActorID: "x", Method: "Fly"})
		if unknown == nil || !strings.Contains(unknown.Error(), "did not find address for actor") {
			return fmt.Errorf("an unknown type: %w", unknown)
		}
		return nil
	}},
}

// ship is a caller's proxy of an actor.
type ship struct {
	id    string
	Load  func(context.Context, int) (int, error)
	Cargo func(context.Context) (int, error)
	Heard func(context.Context) ([]string, error)
	Sink  func(context.Context) (int, error)
}

func (s *ship) Type() string { return "Ship" }
func (s *ship) ID() string   { return s.id }

func newShip(dapr client.Client) *ship {
	made := &ship{id: uuid.NewString()}
	dapr.ImplActorClientStub(made)
	return made
}

// hears waits until the ship has heard something this many times.
func (s *ship) hears(ctx context.Context, what string, count int) error {
	for {
		heard, err := s.Heard(ctx)
		if err != nil {
			return err
		}
		found := 0
		for _, text := range heard {
			if text == what {
				found++
			}
		}
		if found >= count {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%v so far: %w", heard, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// quiet is nil once nothing arrives.
func (s *ship) quiet(ctx context.Context) error {
	before, err := s.Heard(ctx)
	if err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	after, err := s.Heard(ctx)
	return first(err, same("what came afterwards", len(after), len(before)))
}

// Ship is the actor: its cargo is state, and it remembers what it has heard.
type Ship struct {
	actor.ServerImplBaseCtx
	mutex sync.Mutex
	heard []string
}

// Type names its type.
func (s *Ship) Type() string { return "Ship" }

// Load adds to the cargo. A concurrent turn between its two halves would be lost.
func (s *Ship) Load(ctx context.Context, tons int) (int, error) {
	total, err := s.Cargo(ctx)
	if err != nil {
		return 0, err
	}
	time.Sleep(5 * time.Millisecond)
	total += tons
	return total, s.GetStateManager().Set(ctx, "tons", total)
}

// Cargo returns the loaded amount.
func (s *Ship) Cargo(ctx context.Context) (int, error) {
	found, err := s.GetStateManager().Contains(ctx, "tons")
	if err != nil || !found {
		return 0, err
	}
	total := 0
	err = s.GetStateManager().Get(ctx, "tons", &total)
	return total, err
}

// Sink fails.
func (s *Ship) Sink(context.Context) (int, error) { return 0, errors.New("it sinks") }

// Heard returns the messages of timers and reminders.
func (s *Ship) Heard(context.Context) ([]string, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]string{}, s.heard...), nil
}

func (s *Ship) hear(text string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.heard = append(s.heard, text)
}

// Tick is called by a timer.
func (s *Ship) Tick(_ context.Context, text string) error {
	s.hear("timer " + text)
	return nil
}

// ReminderCall is called by reminders.
func (s *Ship) ReminderCall(name string, state []byte, _, _ string) {
	s.hear("reminder " + name + " " + string(state))
}

func addActors(service common.Service) {
	service.RegisterActorImplFactoryContext(func() actor.ServerContext { return &Ship{} })
}
