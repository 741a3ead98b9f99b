package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
)

// broker is shared by both apps and the caller.
const broker = "broker"

// apps are the names of the settings with their addresses.
var apps = []string{"HTTP_APP", "GRPC_APP"}

var pubsubChecks = []check{
	{"both apps receive events of every kind", func(ctx context.Context, dapr client.Client) error {
		key := uuid.NewString()
		text := client.PublishEventWithContentType("text/plain")
		err := first(
			dapr.PublishEvent(ctx, broker, "ships", key, text),
			dapr.PublishEvent(ctx, broker, "ships", map[string]string{"key": key}),
			dapr.PublishEvent(ctx, broker, "ships", []byte(key), client.PublishEventWithContentType("application/octet-stream")))
		if err != nil {
			return err
		}
		for _, app := range apps {
			events, err := taken(ctx, dapr, app, "ships", 3, key)
			if err != nil {
				return err
			}
			kinds := map[string]bool{}
			for _, event := range events {
				kinds[event.ContentType] = true
				err := first(same("type", event.Type, "com.dapr.event.sent"), same("source", event.Source, setting("CALLER")))
				if err != nil {
					return err
				}
			}
			expected := map[string]bool{"text/plain": true, "application/json": true, "application/octet-stream": true}
			if err := same("kinds", kinds, expected); err != nil {
				return err
			}
		}
		return nil
	}},
	{"an envelope of the publisher", func(ctx context.Context, dapr client.Client) error {
		id := uuid.NewString()
		if err := publishAs(ctx, dapr, "ships", id, "boat", 3); err != nil {
			return err
		}
		for _, app := range apps {
			events, err := taken(ctx, dapr, app, "ships", 1, id)
			if err := first(err, same("events", len(events), 1)); err != nil {
				return err
			}
			err = first(same("id", events[0].ID, id), same("source", events[0].Source, "here"), same("type", events[0].Type, "boat"))
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"routes", func(ctx context.Context, dapr client.Client) error {
		for _, event := range []struct {
			kind  string
			tons  int
			where string
		}{{"boat", 200, "boats"}, {"ship", 200, "heavy"}, {"ship", 1, "others"}} {
			id := uuid.NewString()
			if err := publishAs(ctx, dapr, "routed", id, event.kind, event.tons); err != nil {
				return err
			}
			for _, app := range apps {
				if _, err := taken(ctx, dapr, app, event.where, 1, id); err != nil {
					return err
				}
			}
		}
		return nil
	}},
	{"a subscription that is declared", func(ctx context.Context, dapr client.Client) error {
		id := uuid.NewString()
		if err := publishAs(ctx, dapr, "declared", id, "boat", 1); err != nil {
			return err
		}
		_, err := taken(ctx, dapr, "HTTP_APP", "declared", 1, id)
		return err
	}},
	{"dead letters", func(ctx context.Context, dapr client.Client) error {
		poison := "poison " + uuid.NewString()
		text := client.PublishEventWithContentType("text/plain")
		if err := dapr.PublishEvent(ctx, broker, "ships", poison, text); err != nil {
			return err
		}
		for _, app := range apps {
			// Each app drops it, and receives what both have dropped.
			if _, err := taken(ctx, dapr, app, "dead", 2, poison); err != nil {
				return err
			}
		}
		return nil
	}},
	{"events are redelivered on retry", func(ctx context.Context, dapr client.Client) error {
		key := uuid.NewString()
		text := client.PublishEventWithContentType("text/plain")
		if err := dapr.PublishEvent(ctx, broker, "tried", key, text); err != nil {
			return err
		}
		for _, app := range apps {
			events, err := taken(ctx, dapr, app, "tried", 3, key)
			if err := first(err, same("attempts", len(events), 3), same("id", events[2].ID, events[0].ID)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"bulks", func(ctx context.Context, dapr client.Client) error {
		key := uuid.NewString()
		var events []any
		for number := range 100 {
			events = append(events, fmt.Sprintf("%s %d", key, number))
		}
		answer := dapr.PublishEvents(ctx, broker, "ships", events)
		if err := first(answer.Error, same("failed", len(answer.FailedEvents), 0)); err != nil {
			return err
		}
		for _, app := range apps {
			events, err := taken(ctx, dapr, app, "ships", 100, key)
			if err := first(err, same("events", len(events), 100)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"a stream, event by event", func(ctx context.Context, dapr client.Client) error {
		dead := "streamed-dead"
		stream, err := dapr.Subscribe(ctx, client.SubscriptionOptions{PubsubName: broker, Topic: "streamed", DeadLetterTopic: &dead})
		if err != nil {
			return err
		}
		defer stream.Close()
		letters, err := dapr.Subscribe(ctx, client.SubscriptionOptions{PubsubName: broker, Topic: dead})
		if err != nil {
			return err
		}
		defer letters.Close()
		if err := dapr.PublishEvent(ctx, broker, "streamed", map[string]int{"n": 1}); err != nil {
			return err
		}
		event, err := stream.Receive()
		if err != nil {
			return err
		}
		if err := first(same("data", string(event.RawData), `{"n":1}`), same("topic", event.Topic, "streamed"), event.Drop()); err != nil {
			return err
		}
		event, err = letters.Receive()
		if err != nil {
			return err
		}
		return first(same("dead letter", string(event.RawData), `{"n":1}`), event.Success())
	}},
	{"a stream with a handler", func(ctx context.Context, dapr client.Client) error {
		seen := make(chan string, 100)
		failures := 2
		end, err := dapr.SubscribeWithHandler(ctx, client.SubscriptionOptions{PubsubName: broker, Topic: "handled"},
			func(event *common.TopicEvent) common.SubscriptionResponseStatus {
				seen <- string(event.RawData)
				if failures > 0 {
					failures--
					return common.SubscriptionResponseStatusRetry
				}
				return common.SubscriptionResponseStatusSuccess
			})
		if err != nil {
			return err
		}
		if err := dapr.PublishEvent(ctx, broker, "handled", "again"); err != nil {
			return err
		}
		for range 3 {
			select {
			case text := <-seen:
				if err := same("event", text, "again"); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return end()
	}},
	{"errors", func(ctx context.Context, dapr client.Client) error {
		_, stream := dapr.Subscribe(ctx, client.SubscriptionOptions{PubsubName: "nowhere", Topic: "a"})
		return first(
			refused("an unknown broker", dapr.PublishEvent(ctx, "nowhere", "a", "x"), codes.InvalidArgument, "pubsub nowhere is not found"),
			refused("a protected topic", dapr.PublishEvent(ctx, broker, "secret", "x"), codes.PermissionDenied, "topic secret is not allowed"),
			refused("a bulk", dapr.PublishEvents(ctx, "nowhere", "a", []any{"x"}).Error, codes.InvalidArgument, "pubsub nowhere is not found"),
			refused("a stream", stream, codes.InvalidArgument, "nowhere"))
	}},
}

// publishAs publishes a complete envelope.
func publishAs(ctx context.Context, dapr client.Client, topic, id, kind string, tons int) error {
	envelope := map[string]any{
		"specversion": "1.0", "id": id, "source": "here", "type": kind, "data": map[string]int{"tons": tons}}
	data, err := json.Marshal(envelope)
	if err != nil {
		return err
	}
	return dapr.PublishEvent(ctx, broker, topic, data, client.PublishEventWithContentType("application/cloudevents+json"))
}

// seen is the part of an event or job that an app records.
type seen struct{ ID, Type, Source, ContentType, Data string }

// taken waits until an app has this many events with the key, and returns them.
func taken(ctx context.Context, dapr client.Client, app, where string, count int, key string) ([]seen, error) {
	for {
		answer, err := dapr.InvokeMethod(ctx, setting(app), "taken?"+where, "get")
		if err != nil {
			return nil, err
		}
		var all, found []seen
		if err := json.Unmarshal(answer, &all); err != nil {
			return nil, err
		}
		for _, event := range all {
			if strings.Contains(event.ID+event.Data, key) {
				found = append(found, event)
			}
		}
		if len(found) >= count {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s took %d of %s so far: %w", app, len(found), where, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// log has the events of an app, by topic or job.
type log struct {
	mutex sync.Mutex
	kept  map[string][]seen
}

var kept = log{kept: map[string][]seen{}}

// add returns the new number of events.
func (l *log) add(where string, what seen) int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.kept[where] = append(l.kept[where], what)
	return len(l.kept[where])
}

func (l *log) tell(_ context.Context, in *common.InvocationEvent) (*common.Content, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	data, err := json.Marshal(l.kept[in.QueryString])
	return &common.Content{Data: data, ContentType: "application/json"}, err
}

// addEvents makes the app subscribe to topics and report its events.
func addEvents(service common.Service, prefix string) error {
	subscribe := func(topic, where, match string, priority int, dead string) error {
		handle := func(_ context.Context, event *common.TopicEvent) (bool, error) {
			data := string(event.RawData)
			count := kept.add(where, seen{event.ID, event.Type, event.Source, event.DataContentType, data})
			switch {
			case where == "ships" && strings.Contains(data, "poison"):
				return false, errors.New("poison")
			case where == "tried" && count < 3:
				return true, errors.New("once more")
			}
			return false, nil
		}
		return service.AddTopicEventHandler(&common.Subscription{
			PubsubName: broker, Topic: topic, Route: "/" + where, Match: match, Priority: priority, DeadLetterTopic: dead}, handle)
	}
	declared := func(_ context.Context, in *common.InvocationEvent) (*common.Content, error) {
		kept.add("declared", seen{Data: string(in.Data)})
		return nil, nil
	}
	return first(
		service.AddServiceInvocationHandler(prefix+"taken", kept.tell),
		service.AddServiceInvocationHandler(prefix+"declared", declared),
		subscribe("ships", "ships", "", 0, "dead"),
		subscribe("dead", "dead", "", 0, ""),
		subscribe("tried", "tried", "", 0, ""),
		subscribe("routed", "boats", "event.type == 'boat'", 1, ""),
		subscribe("routed", "heavy", "event.data.tons > 100", 2, ""),
		subscribe("routed", "others", "", 0, ""))
}
