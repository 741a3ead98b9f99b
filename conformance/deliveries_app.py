"""A subscriber in a process of its own, so that it can be killed.

usage: deliveries_app.py NAME PORT JOURNAL WORK    every begin and end of an event is a line of JOURNAL; WORK is seconds
"""

import json
import os
import sys
import time

import http_app

name, port, journal, work = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(what, data):
    os.write(out, f"{time.time()} {name} {what} {data['key']} {data['number']}\n".encode())


class Handler(http_app.Handler):
    def do_GET(self):
        self.answer(404)

    def do_POST(self):
        data = json.loads(self.body())["data"]
        if self.path == "/parked":
            note("parked", data)
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
