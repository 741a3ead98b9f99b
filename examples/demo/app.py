"""The demo's HTTP app: Python's standard library and nothing else.

usage: python3 app.py PORT

Every request is answered with what was seen of it, as JSON. GET /times/NAME tells how often /NAME was POSTed.
"""
import collections
import http.server
import json
import platform
import signal
import sys
import threading

POSTED, COUNTING = collections.Counter(), threading.Lock()

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
        # The sidecar asks these two of every app; this one has no such settings.
        status = 404 if self.path in ("/dapr/config", "/dapr/subscribe") else 200
        seen = {
            "stack": f"Python {platform.python_version()} http.server",
            "path": self.path,
            "text": body.decode(errors="replace"),
            "caller": self.headers.get("dapr-caller-app-id", ""),
        }
        if self.command == "POST":
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
