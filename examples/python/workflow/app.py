"""Processes an order as a workflow: reserve, pack, ship. usage: app.py [SECONDS TO PACK]

After a crash, start the app again: the workflow continues where it stopped.
"""
import sys
from datetime import timedelta

import dapr.ext.workflow as wf

INSTANCE = "order-7"
runtime = wf.WorkflowRuntime()


@runtime.workflow
def process_order(ctx: wf.DaprWorkflowContext, order: dict):
    yield ctx.call_activity(reserve, input=order["id"])
    yield ctx.create_timer(timedelta(seconds=order["pack_seconds"]))
    number = yield ctx.call_activity(ship, input=order["id"])
    return f"order {number} shipped"


@runtime.activity
def reserve(ctx: wf.WorkflowActivityContext, number: int):
    print(f"reserved the stock for order {number}", flush=True)


@runtime.activity
def ship(ctx: wf.WorkflowActivityContext, number: int):
    print(f"shipped order {number}", flush=True)
    return number


runtime.start()
client = wf.DaprWorkflowClient()
if client.get_workflow_state(INSTANCE) is None:
    pack_seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1
    print("starting the workflow", INSTANCE, flush=True)
    client.schedule_new_workflow(process_order, input={"id": 7, "pack_seconds": pack_seconds}, instance_id=INSTANCE)
state = client.wait_for_workflow_completion(INSTANCE, timeout_in_seconds=120)
print("the workflow returned:", state.serialized_output.strip('"'))
runtime.shutdown()
