"""Jobs: scheduled by an app, stored by the scheduler, triggered when due."""

import time
import unittest
import warnings

from world import TIMEOUT, beside, taken

# Each call warns about the alpha API.
warnings.filterwarnings("ignore", message="The Jobs API is an Alpha version")


def value(text):
    """Data of a job, delivered to the app unchanged."""
    from google.protobuf.any_pb2 import Any
    return Any(type_url="type.googleapis.com/google.protobuf.BytesValue", value=text.encode())


def job(name, **options):
    from dapr.clients import Job
    return Job(name=name, **options)


class Jobs(unittest.TestCase):
    """schedule_job_alpha1, get_job_alpha1, delete_job_alpha1, and the job handlers of the extensions."""

    def test_a_job_lives_from_schedule_to_delete(self):
        import grpc
        from dapr.clients import ConstantFailurePolicy, DropFailurePolicy
        from dapr.clients.exceptions import DaprGrpcError
        with beside("grpc") as dapr:
            dapr.schedule_job_alpha1(job(
                "kept", schedule="@every 1h", repeats=7, due_time="2h", ttl="200h", data=value("cargo"),
                failure_policy=ConstantFailurePolicy(max_retries=4, interval_seconds=9)))
            found = dapr.get_job_alpha1("kept")
            self.assertEqual((found.name, found.schedule, found.repeats), ("kept", "@every 1h", 7))
            self.assertEqual(found.data.value, b"cargo")
            self.assertEqual((found.failure_policy.max_retries, found.failure_policy.interval_seconds), (4, 9))
            with self.assertRaises(DaprGrpcError) as raised:
                dapr.schedule_job_alpha1(job("kept", schedule="@daily"))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.ALREADY_EXISTS)
            dapr.schedule_job_alpha1(job("kept", schedule="@daily", failure_policy=DropFailurePolicy()), True)
            found = dapr.get_job_alpha1("kept")
            self.assertEqual(found.schedule, "@daily")
            self.assertIsInstance(found.failure_policy, DropFailurePolicy)
            dapr.delete_job_alpha1("kept")
            self.gone(dapr, "kept")

    def gone(self, dapr, name):
        """Waits until a job is gone, which happens once the response to its last trigger is stored."""
        from dapr.clients.exceptions import DaprGrpcError
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                found = dapr.get_job_alpha1(name)
            except DaprGrpcError as error:
                self.assertEqual(error.error_code(), "DAPR_SCHEDULER_GET_JOB")
                self.assertIn("not found", error.details())
                return
            self.assertLess(time.monotonic(), deadline, found)
            time.sleep(0.05)

    def test_both_apps_are_triggered(self):
        for app, expected in (("grpc", '{"bell": 8}'), ("http", {"bell": 8})):
            with beside(app) as dapr:
                dapr.schedule_job_alpha1(job("once", due_time="100ms", data=value('{"bell": 8}')))
                dapr.schedule_job_alpha1(job("thrice", schedule="@every 300ms", repeats=3, data=value('"tick"')))
                self.assertEqual(taken(app, "once"), [expected])
                taken(app, "thrice", 3)
                for name in ("once", "thrice"):
                    self.gone(dapr, name)
                self.assertEqual((len(taken(app, "once")), len(taken(app, "thrice"))), (1, 3))

    def test_what_fails_is_tried_again(self):
        from dapr.clients import ConstantFailurePolicy
        for app in ("grpc", "http"):
            with beside(app) as dapr:
                dapr.schedule_job_alpha1(job("fails", due_time="0s", data=value('"leak"'), failure_policy=
                                             ConstantFailurePolicy(max_retries=5, interval_seconds=0)))
                self.assertEqual(len(taken(app, "fails", 3)), 3)

    def test_errors(self):
        from dapr.clients.exceptions import DaprGrpcError
        with beside("grpc") as dapr:
            for wrong in (job("bad", schedule="sometimes"), job("bad", due_time="tomorrow"),
                          job("bad", due_time="2h", ttl="1h")):
                with self.assertRaises(DaprGrpcError) as raised:
                    dapr.schedule_job_alpha1(wrong)
                self.assertEqual(raised.exception.error_code(), "DAPR_SCHEDULER_SCHEDULE_JOB", wrong)
