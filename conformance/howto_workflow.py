"""The workflows behind conformance/howto: `order-7` ends, `order-8` waits for an event."""
import time

from dapr.ext import workflow

runtime = workflow.WorkflowRuntime()


@runtime.workflow
def order(context, waits):
    yield context.call_activity(reserve, input=waits)
    if waits:
        yield context.wait_for_external_event("approved")


@runtime.activity
def reserve(_context, item):
    return item


runtime.start()
client = workflow.DaprWorkflowClient()
for instance, waits in (("order-7", False), ("order-8", True)):
    client.schedule_new_workflow(order, input=waits, instance_id=instance)
client.wait_for_workflow_completion("order-7", timeout_in_seconds=60)
print("order-7 has ended", flush=True)
time.sleep(600)
