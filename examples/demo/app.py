"""The demo's HTTP app: Python's standard library and nothing else.

usage: python3 app.py PORT SIDECAR_PORT

Every request is answered with what was seen of it, as JSON. GET /times/NAME tells how often /NAME was POSTed, or PUT.
The app hosts actors of the type Boat, whose method `sail` counts its calls in the actor's state.
"""
import collections
import http.server
import json
import platform
import signal
import sys
import threading
import urllib.request

SIDECAR = f"http://127.0.0.1:{sys.argv[2]}"
ACTORS = {"entities": ["Boat"], "actorIdleTimeout": "1h"}
POSTED, COUNTING = collections.Counter(), threading.Lock()

def sidecar(path, body=None):
    """GET without a body, else POST; nothing where there is nothing."""
    with urllib.request.urlopen(urllib.request.Request(SIDECAR + path, body), timeout=10) as answer:
        return json.loads(answer.read() or b"null")


def sail(actor):
    """Turns of one actor come one after another: nobody writes between the reading and the writing."""
    calls = (sidecar(f"/v1.0/{actor}/state/calls") or 0) + 1
    change = [{"operation": "upsert", "request": {"key": "calls", "value": calls}}]
    sidecar(f"/v1.0/{actor}/state", json.dumps(change).encode())
    return calls


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one segment

    def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(chunks)

    def answer(self):
        body = self.body()
        # The sidecar asks every app what it subscribes to; here resources say that. What leaks is refused.
        status = {"/dapr/subscribe": 404, "/leaking": 500}.get(self.path, 200)
        seen = {
            "stack": f"Python {platform.python_version()} http.server",
            "port": int(sys.argv[1]),
            "path": self.path,
            "text": body.decode(errors="replace"),
            "caller": self.headers.get("dapr-caller-app-id", ""),
        }
        if self.path == "/dapr/config":
            seen = ACTORS
        if self.command == "PUT" and self.path.endswith("/method/sail"):
            seen["calls"] = sail(self.path.removesuffix("/method/sail").strip("/"))
        if self.command in ("POST", "PUT"):
            with COUNTING:
                POSTED[self.path] += 1
        if self.path.startswith("/times/"):
            seen["times"] = POSTED[self.path.removeprefix("/times")]
        reply = json.dumps(seen).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    # By OPTIONS the sidecar asks whether the app takes the events of an input binding.
    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = answer

    def log_message(self, format, *args):
        print(format % args, flush=True)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App) as server:
    server.daemon_threads = True
    server.serve_forever()
