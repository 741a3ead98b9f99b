"""The app behind conformance/howto: answers 200 and prints each request. usage: howto_app.py PORT

GET /fail and the path in FAIL answer 500, /slow takes a second and answers how many calls it had at once, /healthz
answers 500 while the file `sick` exists.
"""
import contextlib
import http.server
import json
import os
import sys
import threading
import time

AT_ONCE = {"now": 0, "most": 0}
LOCK = threading.Lock()


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        print(self.command, self.path, self.headers.get("dapr-api-token", ""), body[:300].decode(errors="replace"), flush=True)
        status = 404 if self.path.startswith("/dapr/") else 200
        if self.path in ("/fail", os.environ.get("FAIL")) or self.path == "/healthz" and os.path.exists("sick"):
            status = 500
        answer = json.dumps({"path": self.path, "caller": self.headers.get("dapr-caller-app-id"), "bytes": len(body)})
        if self.path == "/slow":
            with LOCK:
                AT_ONCE["now"] += 1
                AT_ONCE["most"] = max(AT_ONCE.values())
            time.sleep(1)
            with LOCK:
                AT_ONCE["now"] -= 1
            answer = f"at once: {AT_ONCE['most']}\n"
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = answer

    def log_message(self, *_):
        pass


if len(sys.argv) != 2 or not sys.argv[1].isdigit():
    sys.exit(__doc__)
with contextlib.suppress(KeyboardInterrupt):
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
