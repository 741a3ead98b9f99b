"""A workflow worker in a separate process, so that it can be killed.

usage: faults_worker.py NAME GRPC_PORT JOURNAL     every start and end of an activity is a line of JOURNAL: the time, NAME, event,
                                                   instance and step, and the id of the execution
"""

import os
import signal
import sys
import threading
import time
from datetime import timedelta

from dapr.ext import workflow

name, port, journal = sys.argv[1:]
out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def work(context, given):
    execution = context.get_inner_context().task_execution_id

    def note(what):
        os.write(out, f"{time.time()} {name} {what} {context.workflow_id}/{given['step']} {execution}\n".encode())

    note("begin")
    time.sleep(given["seconds"])
    note("end")
    return given["step"]


def order(context, seconds):
    """Two activities in sequence, a timer, three activities concurrently."""
    done = []
    for step in (1, 2):
        done.append((yield context.call_activity(work, input={"step": step, "seconds": seconds})))
    yield context.create_timer(timedelta(milliseconds=300))
    many = [context.call_activity(work, input={"step": step, "seconds": seconds}) for step in (3, 4, 5)]
    done += yield workflow.when_all(many)
    return sum(done)


def fatal(_context, _given):
    os.kill(os.getpid(), signal.SIGKILL)


def doomed(context, _given):
    """Returns why its activity failed."""
    try:
        yield context.call_activity(fatal, input=0)
    except Exception as error:
        return str(error)
    return "it lives"


runtime = workflow.WorkflowRuntime(host="127.0.0.1", port=port)
for flow in (order, doomed):
    runtime.register_workflow(flow)
for activity in (work, fatal):
    runtime.register_activity(activity)
runtime.start()
asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
asked.wait()
runtime.shutdown()
