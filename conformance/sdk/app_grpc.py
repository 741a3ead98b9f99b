"""An app served with the SDK's gRPC extension. usage: app_grpc.py PORT"""

import collections
import json
import signal
import sys

from cloudevents.sdk.event import v1
from dapr.clients.grpc._response import TopicEventResponse
from dapr.ext.grpc import App, BindingRequest, InvokeMethodRequest, InvokeMethodResponse, JobEvent, Rule

app = App()
# Received events, by topic or job; the method `taken` returns them.
taken = collections.defaultdict(list)


@app.method("echo")
def echo(request: InvokeMethodRequest) -> InvokeMethodResponse:
    metadata = {key: [str(value) for value in values] for key, values in request.metadata.items()}
    seen = {"text": request.text(), "content_type": request.content_type, "metadata": metadata}
    return InvokeMethodResponse(json.dumps(seen), "application/json", headers=(("x-answered-by", "app-grpc"),))


@app.method("bytes")
def raw(request: InvokeMethodRequest) -> InvokeMethodResponse:
    return InvokeMethodResponse(request.data, request.content_type)


@app.binding("tick")
def tick(request: BindingRequest):
    assert request.binding_metadata["readTimeUTC"], request.binding_metadata


@app.method("taken")
def tell(_request: InvokeMethodRequest) -> InvokeMethodResponse:
    return InvokeMethodResponse(json.dumps(taken), "application/json")


def keep(event: v1.Event, where: str):
    taken[where].append({"id": event.EventID(), "type": event.EventType(), "source": event.Source(),
                         "datacontenttype": event.ContentType(), "data": event.Data().decode()})


@app.subscribe("events", "decorated", dead_letter_topic="dead")
def decorated(event: v1.Event):
    keep(event, "decorated")
    return TopicEventResponse("drop" if event.Data() == b"poison" else "success")


@app.subscribe("events", "dead")
def dead(event: v1.Event):
    keep(event, "dead")


@app.subscribe("events", "tried")
def tried(event: v1.Event):
    keep(event, "tried")
    return TopicEventResponse("retry" if len(taken["tried"]) < 3 else "success")


@app.subscribe("events", "routed", rule=Rule('event.type == "ship"', 1))
def ships(event: v1.Event):
    keep(event, "ships")


@app.subscribe("events", "routed", rule=Rule('event.data.tons > 100', 2))
def heavy(event: v1.Event):
    keep(event, "heavy")


@app.subscribe("events", "declared")
def declared(event: v1.Event):
    keep(event, "declared")


def job(event: JobEvent):
    taken[event.name].append(event.get_data_as_string())
    if event.name == "fails" and len(taken[event.name]) < 3:
        raise RuntimeError("not yet")


for name in ("once", "thrice", "fails"):
    app.job_event(name)(job)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
app.run(int(sys.argv[1]), "127.0.0.1")
