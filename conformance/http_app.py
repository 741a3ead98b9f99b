"""The base of the checks' apps: a silent HTTP server that survives the kill of its sidecar."""

import http.server
import threading

HOST = "127.0.0.1"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def answer(self, status, body=b""):
        self.send_response(status)
        if body:
            self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass  # its sidecar was killed


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def start(handler):
    """A server on a free port, in the background."""
    server = Server((HOST, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
