"""An app that subscribes to a topic, handles jobs and runs workflows; it prints its input. usage: app.py PORT"""

import http.server
import json
import sys
from datetime import timedelta

from dapr.ext import workflow

runtime = workflow.WorkflowRuntime()


@runtime.workflow
def waits(context, text):
    """Runs an activity, then waits for an event with a timer that never fires."""
    shouted = yield context.call_activity(shout, input=text)
    context.set_custom_status("waiting")
    late = context.create_timer(timedelta(hours=10))
    told = context.wait_for_external_event("answer")
    yield workflow.when_any([told, late])
    return f"{shouted} {told.get_result()}"


@runtime.activity
def shout(_context, text):
    return text.upper()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer([{"pubsubname": "events", "topic": "ships", "route": "/ships"}])

    def do_POST(self):
        print("took", self.path, self.rfile.read(int(self.headers["content-length"])).decode(), flush=True)
        self.answer({})

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200 if self.path != "/dapr/config" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
runtime.start()
server.serve_forever()
