"""A server of the Model Context Protocol for tests: server.py stdio | http | sse | elsewhere.

With HTTP it prints its port. `elsewhere` is `sse` with an endpoint of another origin. POST /token issues a token.
"""

import json
import os
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = sys.argv[1]
TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object", "required": ["message"]}},
    {"name": "header", "inputSchema": {"type": "object"}},
    {"name": "variable", "inputSchema": {"type": "object"}},
    {"name": "slow", "inputSchema": {"type": "object"}},
    {"name": "exit", "inputSchema": {"type": "object"}},
]
STREAM = queue.Queue()


def result(text):
    return {"content": [{"type": "text", "text": text}]}


def call(tool, arguments, headers):
    if tool == "echo":
        return result(arguments["message"])
    if tool == "header":
        return result(headers.get(arguments["name"], ""))
    if tool == "variable":
        return result(os.environ.get(arguments["name"], ""))
    if tool == "slow":
        time.sleep(60)
    os._exit(1)


def answer(request, headers):
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        info = {"name": "test", "version": "1"}
        value = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        page = int(params.get("cursor") or 0)
        value = {"tools": TOOLS[page : page + 1]}
        if page + 1 < len(TOOLS):
            value["nextCursor"] = str(page + 1)
    elif method == "tools/call":
        value = call(params["name"], params.get("arguments") or {}, headers)
    else:
        value = {}
    return {"jsonrpc": "2.0", "id": request["id"], "result": value}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body=b"", kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if MODE == "http":
            return self.send(405)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        origin = "http://127.0.0.1:1" if MODE == "elsewhere" else ""
        self.wfile.write(f"event: endpoint\ndata: {origin}/messages?session=1\n\n".encode())
        while True:
            message = json.dumps(STREAM.get())
            self.wfile.write(f"event: message\ndata: {message}\n\n".encode())

    def do_DELETE(self):
        self.send(200)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/token":
            granted = b"grant_type=client_credentials" in body and b"audience=tools" in body
            token = {"access_token": "token-1", "token_type": "Bearer", "expires_in": 60}
            return self.send(200 if granted else 400, json.dumps(token).encode())
        request = json.loads(body)
        if "id" not in request:
            return self.send(202)
        if MODE == "http":
            return self.send(200, json.dumps(answer(request, self.headers)).encode())
        self.send(202)
        headers = dict(self.headers.items())
        threading.Thread(target=lambda: STREAM.put(answer(request, headers)), daemon=True).start()


if MODE == "stdio":
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps(answer(request, {})), flush=True)
else:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
