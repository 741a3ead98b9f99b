"""Schedules a job and runs it when the scheduler triggers it."""
import json
import os
import threading

from dapr.clients import DaprClient, Job
from dapr.ext.grpc import App, JobEvent
from google.protobuf.any_pb2 import Any

app = App()


@app.job_event("reminder")
def remind(event: JobEvent):
    print("job reminder:", json.loads(event.get_data_as_string())["task"])


def schedule():
    # The client waits until the sidecar is ready, and the sidecar waits for the app.
    with DaprClient() as dapr:
        data = Any(value=json.dumps({"task": "water the plants"}).encode())
        dapr.schedule_job_alpha1(Job(name="reminder", due_time="1s", data=data), overwrite=True)
        print("scheduled the job reminder")


threading.Thread(target=schedule, daemon=True).start()
app.run(int(os.environ["APP_PORT"]))
