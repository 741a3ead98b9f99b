"""An app served with the SDK's gRPC extension. usage: app_grpc.py PORT"""

import json
import signal
import sys

from dapr.ext.grpc import App, BindingRequest, InvokeMethodRequest, InvokeMethodResponse

app = App()


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


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
app.run(int(sys.argv[1]), "127.0.0.1")
