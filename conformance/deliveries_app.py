"""A subscriber in a separate process, so that it can be killed.

usage: deliveries_app.py NAME PORT JOURNAL WORK    every begin and end of an event is a line of JOURNAL; WORK is seconds;
of an outbox only some of the events take that long
"""

import json
import os
import sys
import time
import urllib.request

import http_app

name, port, journal, work = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
# One of this many outbox transactions is slow.
SLOW = 20
out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(what, data):
    os.write(out, f"{time.time()} {name} {what} {data['key']} {data['number']}\n".encode())


def stored(data, event):
    """Whether the store could be asked for the value of an outbox event; records problems of the event. Poison is refused."""
    key = {"key": f"{data['part']}/{event['id']}", "number": data["number"]}
    note("begin", key)
    if data["part"] == "plain":
        return True
    if data["number"] % SLOW == 0:
        time.sleep(work)
    if (data["part"] == "order") != bool(data.get("projected")) or "stored" in data and data["part"] == "order":
        note("unprojected", key)
    if data.get("poison"):
        return False
    url = f"http://{http_app.HOST}:{os.environ['DAPR_HTTP_PORT']}/v1.0/state/store/{data['part']}-{data['number']}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status != 200:
                note("early", key)
    except OSError:
        return False
    note("end", key)
    return True


class Handler(http_app.Handler):
    def do_GET(self):
        self.answer(404)

    def do_POST(self):
        event = json.loads(self.body())
        data = event["data"]
        if self.path == "/stored":
            self.answer(200 if stored(data, event) else 500)
            return
        if self.path == "/parked":
            note("parked", {"key": data.get("part"), **data})
            self.answer(200)
            return
        note("begin", data)
        time.sleep(work)
        if data.get("poison"):
            self.answer(500)
            return
        note("end", data)
        self.answer(200)


http_app.Server((http_app.HOST, port), Handler).serve_forever()
