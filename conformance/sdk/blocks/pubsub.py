"""Publish/subscribe: declared and programmatic subscriptions of both apps, routes, dead letters, bulks, streams."""

import base64
import json
import queue
import unittest
import uuid

from world import TIMEOUT, beside, client, component, started, taken

BROKER = "events"
APPS = ("http", "grpc")


def resources(data):
    rules = [("event.type == 'boat'", "/declared/boats"), ("event.data.tons > 100", "/declared/heavy")]
    ours, theirs = (f"{app}-{started['fleet'].suffix}" for app in APPS)
    return [
        component(BROKER, "pubsub.sqlite", connectionString=data / "events.db", redeliverInterval="100ms",
                  protectedTopics="secret"),
        subscription("declared-http", "declared", ours, "/declared/plain"),
        subscription("declared-grpc", "declared", theirs, ""),
        subscription("routed-http", "routed", ours, "/declared/others", rules)]


def subscription(name, topic, app, default, rules=()):
    """A Subscription resource, as YAML; JSON is YAML."""
    routes = {"default": default, "rules": [{"match": match, "path": path} for match, path in rules]}
    return json.dumps({
        "apiVersion": "dapr.io/v2alpha1", "kind": "Subscription", "metadata": {"name": name}, "scopes": [app],
        "spec": {"pubsubname": BROKER, "topic": topic, "routes": routes}}) + "\n"


def with_id(id):
    return lambda event: event["id"] == id


class Pubsub(unittest.TestCase):
    """publish_event and publish_events, with the apps' subscriptions."""

    def publish(self, topic, data, kind="application/json", **metadata):
        """Publishes one event, as a complete envelope if it has an id."""
        with client() as dapr:
            dapr.publish_event(BROKER, topic, json.dumps(data) if isinstance(data, dict) else data,
                               data_content_type=kind, publish_metadata=metadata)

    def test_both_apps_take_what_they_declare(self):
        for topic, mine in (("declared", "plain"), ("decorated", "decorated")):
            text = f"ahoy {uuid.uuid4()}"
            self.publish(topic, text, "text/plain")
            for app, where in (("http", mine), ("grpc", topic)):
                (event,) = taken(app, where, matching=lambda event: event["data"] == text)
                self.assertEqual(event["datacontenttype"], "text/plain")
                self.assertEqual(event["type"], "com.dapr.event.sent")
                self.assertEqual(event["source"], started["caller"].app_id)
                self.assertTrue(event["id"])

    def test_kinds_of_data(self):
        self.publish("declared", {"bell": "json"})
        self.publish("declared", b"\x00\xffbytes", "application/octet-stream")
        (event,) = taken("http", "plain", matching=lambda event: event.get("data") == {"bell": "json"})
        self.assertEqual(event["datacontenttype"], "application/json")
        (event,) = taken("http", "plain", matching=lambda event: "data_base64" in event)
        self.assertEqual(base64.b64decode(event["data_base64"]), b"\x00\xffbytes")
        (event,) = taken("grpc", "declared", matching=lambda event: "json" in event["data"])
        self.assertEqual(json.loads(event["data"]), {"bell": "json"})

    def test_envelopes_of_the_publisher(self):
        id = str(uuid.uuid4())
        envelope = {"specversion": "1.0", "id": id, "source": "here", "type": "bell", "data": {"n": 1}, "extra": "x"}
        self.publish("decorated", envelope, "application/cloudevents+json")
        (event,) = taken("http", "decorated", matching=with_id(id))
        self.assertEqual({key: event[key] for key in envelope}, envelope)
        (event,) = taken("grpc", "decorated", matching=with_id(id))
        self.assertEqual((event["source"], event["type"]), ("here", "bell"))
        text = str(uuid.uuid4())
        self.publish("decorated", text, "text/plain", **{"cloudevent.type": "buoy", "cloudevent.id": text})
        (event,) = taken("grpc", "decorated", matching=with_id(text))
        self.assertEqual(event["type"], "buoy")

    def test_raw(self):
        self.publish("raw", {"no": "envelope"}, rawPayload="true")
        (event,) = taken("http", "raw")
        self.assertEqual(json.loads(base64.b64decode(event["data_base64"])), {"no": "envelope"})

    def test_routes(self):
        for type, tons, http, grpc in (("ship", 1, "others", "ships"), ("boat", 200, "boats", "heavy"),
                                       ("raft", 200, "heavy", "heavy")):
            id = str(uuid.uuid4())
            self.publish("routed", {"specversion": "1.0", "id": id, "source": "here", "type": type,
                                    "data": {"tons": tons}}, "application/cloudevents+json")
            self.assertEqual(len(taken("http", http, matching=with_id(id))), 1)
            self.assertEqual(len(taken("grpc", grpc, matching=with_id(id))), 1)

    def test_dead_letters(self):
        self.publish("decorated", "poison", "text/plain")
        for app in APPS:
            # Each app has its own group, so both drop it, and each receives what both have dropped.
            events = taken(app, "dead", 2, matching=lambda event: event["data"] == "poison")
            self.assertEqual({event["type"] for event in events}, {"com.dapr.event.sent"})

    def test_what_an_app_wants_again_comes_again(self):
        self.publish("tried", "once more", "text/plain")
        for app in APPS:
            events = taken(app, "tried", 3)
            self.assertEqual(len({event["id"] for event in events}), 1)

    def test_bulks(self):
        key = str(uuid.uuid4())
        with client() as dapr:
            answer = dapr.publish_events(BROKER, "declared", [f"{key} {n}" for n in range(100)])
        self.assertEqual(answer.failed_entries, [])
        for app, where in (("http", "plain"), ("grpc", "declared")):
            events = taken(app, where, 100, matching=lambda event: key in str(event.get("data")))
            self.assertEqual({event["data"] for event in events}, {f"{key} {n}" for n in range(100)})
            self.assertEqual(len(events), 100)

    def test_errors(self):
        import grpc
        from dapr.clients.exceptions import DaprGrpcError
        for broker, topic, code in (("nowhere", "a", grpc.StatusCode.INVALID_ARGUMENT),
                                    (BROKER, "secret", grpc.StatusCode.PERMISSION_DENIED)):
            with client() as dapr:
                for attempt in (lambda: dapr.publish_event(broker, topic, "x"),
                                lambda: dapr.publish_events(broker, topic, ["x"])):
                    with self.assertRaises(DaprGrpcError) as raised:
                        attempt()
                    self.assertEqual(raised.exception.code(), code)


class Streams(unittest.TestCase):
    """subscribe and subscribe_with_handler. The SDK sends no API token with them, so they use a sidecar without one."""

    def open(self, dapr, topic, dead=None):
        """DaprClient.subscribe without a race of SDK 1.17: the SDK closes a stream that is not marked active before its thread
        checks the mark."""
        from dapr.clients.grpc.subscription import Subscription
        stream = Subscription(dapr._stub, BROKER, topic, dead_letter_topic=dead)
        if hasattr(stream, "_set_stream_active"):
            stream._set_stream_active()
        stream.start()
        return stream

    def test_messages_one_by_one(self):
        with beside("grpc") as dapr:
            stream = self.open(dapr, "streamed", "streamed-dead")
            dead = self.open(dapr, "streamed-dead")
            dapr.publish_event(BROKER, "streamed", json.dumps({"n": 1}), data_content_type="application/json")
            message = stream.next_message()
            self.assertEqual((message.data(), message.topic(), message.pubsub_name()), ({"n": 1}, "streamed", BROKER))
            stream.respond_success(message)
            dapr.publish_event(BROKER, "streamed", "poison", data_content_type="text/plain")
            message = stream.next_message()
            self.assertEqual(message.data(), "poison")
            stream.respond_drop(message)
            message = dead.next_message()
            self.assertEqual(message.data(), "poison")
            dead.respond_success(message)
            stream.close()
            dead.close()

    def test_handlers(self):
        from dapr.clients.grpc._response import TopicEventResponse
        seen = queue.Queue()
        answers = iter(("retry", "retry", "success", "success"))

        def handler(message):
            seen.put(message.data())
            return TopicEventResponse(next(answers))
        with beside("grpc") as dapr:
            close = dapr.subscribe_with_handler(BROKER, "handled", handler)
            dapr.publish_event(BROKER, "handled", "a", data_content_type="text/plain")
            self.assertEqual([seen.get(timeout=TIMEOUT) for _ in range(3)], ["a", "a", "a"])
            dapr.publish_event(BROKER, "handled", "b", data_content_type="text/plain")
            self.assertEqual(seen.get(timeout=TIMEOUT), "b")
            close()
            # Closing a stream loses nothing: events published later, and those not acknowledged before, are delivered to
            # the next one.
            dapr.publish_event(BROKER, "handled", "c", data_content_type="text/plain")
            stream = self.open(dapr, "handled")
            while (message := stream.next_message()).data() == "b":
                stream.respond_success(message)
            self.assertEqual(message.data(), "c")
            stream.respond_success(message)
            stream.close()
        self.assertTrue(seen.empty(), "the handler's stream has ended")

    def test_errors(self):
        with beside("grpc") as dapr, self.assertRaisesRegex(Exception, "nowhere"):
            dapr.subscribe("nowhere", "a")
