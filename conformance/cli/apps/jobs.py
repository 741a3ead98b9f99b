"""Jobs on the Python SDK. usage: jobs.py service PORT|caller SERVICE

The service schedules jobs on request and prints those it receives; the caller asks it through both sidecars.
"""

import json
import os
import sys
import time
import urllib.request

import uvicorn
from dapr.clients import DaprClient, Job
from fastapi import FastAPI, Request
from google.protobuf.any_pb2 import Any

app = FastAPI()


@app.post("/plan/{name}")
def plan(name: str):
    data = Any(value=json.dumps({"cargo": "salt"}).encode())
    with DaprClient() as dapr:
        dapr.schedule_job_alpha1(Job(name=name, due_time="1s", data=data), overwrite=True)
        return {"due": dapr.get_job_alpha1(name).due_time}


@app.post("/job/{name}")
async def take(name: str, request: Request):
    print("took job", name, (await request.json())["cargo"], flush=True)


def call(service):
    """Retries until the service responds."""
    url = f"http://127.0.0.1:{os.environ['DAPR_HTTP_PORT']}/v1.0/invoke/{service}/method/plan/voyage"
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=10) as answer:
                return print("planned", json.load(answer), flush=True)
        except OSError as error:
            print("not yet:", error, flush=True)
            time.sleep(0.5)


if sys.argv[1] == "service":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
else:
    call(sys.argv[2])
