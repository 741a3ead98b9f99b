"""A workflow on the Python SDK, with worker and client in one app. usage: order.py"""

import signal

from dapr.ext import workflow

runtime = workflow.WorkflowRuntime()


@runtime.workflow
def order(context, item):
    yield context.call_activity(reserve, input=item)
    return (yield context.call_activity(ship, input=item))


@runtime.activity
def reserve(_context, item):
    print("reserved", item, flush=True)


@runtime.activity
def ship(_context, item):
    return f"{item} shipped"


runtime.start()
client = workflow.DaprWorkflowClient()
instance = client.schedule_new_workflow(order, input="anchor")
state = client.wait_for_workflow_completion(instance, timeout_in_seconds=60)
print(f"workflow {state.runtime_status.name}: {state.serialized_output}", flush=True)
# The CLI may lose the last lines of an app that exits.
signal.pause()
