"""Workflows with this process as worker, and one with a worker of another app."""

import collections
import time
import unittest
import uuid
from datetime import datetime, timedelta, timezone

from world import TIMEOUT, started

made = {}
attempts = collections.Counter()


def setUpModule():
    from dapr.ext import workflow
    runtime = workflow.WorkflowRuntime()
    for flow in (chain, fan, sleeper, asks, parent, child, fails, patient, again, status, abroad):
        runtime.register_workflow(flow)
    for activity in (double, flaky, broken):
        runtime.register_activity(activity)
    other = workflow.WorkflowRuntime(host="127.0.0.1", port=str(started["grpc"].grpc))
    other.register_activity(triple)
    other.register_workflow(guest)
    for worker in (runtime, other):
        worker.start()
    made.update(client=workflow.DaprWorkflowClient(), workers=(runtime, other))


def tearDownModule():
    made["client"].close()
    for worker in made["workers"]:
        worker.shutdown()


def double(_context, number):
    return 2 * number


def triple(_context, number):
    return 3 * number


def flaky(_context, key):
    attempts[key] += 1
    if attempts[key] < 3:
        raise ValueError(f"attempt {attempts[key]}")
    return attempts[key]


def broken(_context, key):
    attempts[key] += 1
    raise ValueError("beyond repair")


def chain(context, number):
    for _ in range(3):
        number = yield context.call_activity(double, input=number)
    return number


def fan(context, count):
    from dapr.ext.workflow import when_all
    results = yield when_all([context.call_activity(double, input=n) for n in range(count)])
    return sum(results)


def sleeper(context, seconds):
    before = context.current_utc_datetime
    yield context.create_timer(timedelta(seconds=seconds))
    return (context.current_utc_datetime - before).total_seconds()


def asks(context, seconds):
    """The data of an event, or 'nothing' after a timeout."""
    from dapr.ext.workflow import when_any
    told = context.wait_for_external_event("answer")
    late = context.create_timer(timedelta(seconds=seconds))
    first = yield when_any([told, late])
    return "nothing" if first == late else told.get_result()


def child(context, number):
    return (yield context.call_activity(double, input=number))


def parent(context, number):
    """Waits for a child that ends, then for one that does not."""
    doubled = yield context.call_child_workflow(child, input=number)
    context.set_custom_status(str(doubled))
    yield context.call_child_workflow(asks, input=600, instance_id=f"{context.instance_id}-child")


def fails(context, key):
    yield context.call_activity(broken, input=key, retry_policy=policy(2))


def patient(context, key):
    return (yield context.call_activity(flaky, input=key, retry_policy=policy(5)))


def policy(attempts):
    from dapr.ext.workflow import RetryPolicy
    return RetryPolicy(first_retry_interval=timedelta(milliseconds=50), max_number_of_attempts=attempts)


def again(context, rounds):
    """Continues as new for this many rounds; early events are kept."""
    if rounds:
        context.continue_as_new(rounds - 1, save_events=True)
        return None
    return (yield context.wait_for_external_event("answer"))


def status(context, text):
    context.set_custom_status(text)
    yield context.wait_for_external_event("answer")
    return text


def guest(context, number):
    return (yield context.call_activity(triple, input=number))


def abroad(context, app):
    """An activity and a workflow of another app."""
    nine = yield context.call_activity("triple", input=3, app_id=app)
    return (yield context.call_child_workflow("guest", input=nine, app_id=app))


class Workflows(unittest.TestCase):
    """DaprWorkflowClient and WorkflowRuntime."""

    def setUp(self):
        self.client = made["client"]

    def start(self, flow, input=None, **options):
        id = self.client.schedule_new_workflow(flow, input=input, instance_id=str(uuid.uuid4()), **options)
        self.client.wait_for_workflow_start(id, timeout_in_seconds=TIMEOUT)
        return id

    def end(self, id, status="COMPLETED"):
        state = self.client.wait_for_workflow_completion(id, timeout_in_seconds=TIMEOUT)
        self.assertEqual(state.runtime_status.name, status, state)
        return state

    def run_to_end(self, flow, input=None):
        return self.end(self.start(flow, input)).serialized_output

    def until(self, id, condition):
        deadline = time.monotonic() + TIMEOUT
        while not condition(state := self.client.get_workflow_state(id)):
            self.assertLess(time.monotonic(), deadline, state)
            time.sleep(0.05)
        return state

    def test_chain(self):
        id = self.start(chain, 5)
        state = self.end(id)
        self.assertEqual((state.instance_id, state.name), (id, "chain"))
        self.assertEqual((state.serialized_input, state.serialized_output), ("5", "40"))
        self.assertLessEqual(state.created_at, state.last_updated_at)

    def test_fan_out(self):
        self.assertEqual(self.run_to_end(fan, 50), str(2 * sum(range(50))))

    def test_many_at_once(self):
        ids = [self.client.schedule_new_workflow(chain, input=n) for n in range(30)]
        self.assertEqual([self.end(id).serialized_output for id in ids], [str(8 * n) for n in range(30)])

    def test_timers(self):
        self.assertGreaterEqual(float(self.run_to_end(sleeper, 1)), 1)

    def test_events(self):
        id = self.start(asks, 600)
        self.client.raise_workflow_event(id, "answer", data={"yes": True})
        self.assertEqual(self.end(id).serialized_output, '{"yes": true}')
        self.assertEqual(self.run_to_end(asks, 1), '"nothing"')

    def test_children_end_with_their_parent(self):
        id = self.start(parent, 4)
        state = self.until(f"{id}-child", lambda state: state and state.runtime_status.name == "RUNNING")
        self.assertEqual(state.name, "asks")
        self.assertEqual(self.client.get_workflow_state(id).serialized_custom_status, '8')
        self.client.terminate_workflow(id, output="enough")
        self.assertEqual(self.end(id, "TERMINATED").serialized_output, '"enough"')
        self.end(f"{id}-child", "TERMINATED")

    def test_pause_and_resume(self):
        id = self.start(asks, 600)
        self.client.pause_workflow(id)
        self.until(id, lambda state: state.runtime_status.name == "SUSPENDED")
        self.client.raise_workflow_event(id, "answer", data="late")
        time.sleep(0.5)
        self.assertEqual(self.client.get_workflow_state(id).runtime_status.name, "SUSPENDED")
        self.client.resume_workflow(id)
        self.assertEqual(self.end(id).serialized_output, '"late"')

    def test_purge(self):
        id = self.start(chain, 1)
        self.end(id)
        self.client.purge_workflow(id)
        self.assertIsNone(self.client.get_workflow_state(id))

    def test_retries(self):
        key = str(uuid.uuid4())
        self.assertEqual(self.run_to_end(patient, key), "3")
        key = str(uuid.uuid4())
        state = self.end(self.start(fails, key), "FAILED")
        self.assertEqual(attempts[key], 2)
        self.assertIn("beyond repair", state.failure_details.message)

    def test_continue_as_new(self):
        id = self.start(again, 5)
        self.client.raise_workflow_event(id, "answer", data="kept")
        self.assertEqual(self.end(id).serialized_output, '"kept"')

    def test_custom_status(self):
        id = self.start(status, "at sea")
        self.until(id, lambda state: state.serialized_custom_status == "at sea")
        self.client.raise_workflow_event(id, "answer")
        self.end(id)

    def test_a_start_for_later(self):
        later = datetime.now(timezone.utc) + timedelta(seconds=1.5)
        id = self.client.schedule_new_workflow(chain, input=1, start_at=later)
        self.assertEqual(self.client.get_workflow_state(id).runtime_status.name, "PENDING")
        self.end(id)
        self.assertGreaterEqual(datetime.now(timezone.utc), later)

    def test_workers_of_another_app(self):
        self.assertEqual(self.run_to_end(abroad, started["grpc"].app_id), "27")

    def test_errors(self):
        import grpc
        self.assertIsNone(self.client.get_workflow_state("nobody"))
        id = self.start(asks, 600)
        with self.assertRaises(grpc.RpcError) as raised:
            self.client.schedule_new_workflow(asks, input=1, instance_id=id)
        self.assertIn(f"an active workflow with ID '{id}' already exists", raised.exception.details())
        self.client.terminate_workflow(id)
        self.end(id, "TERMINATED")
