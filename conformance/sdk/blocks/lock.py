"""Distributed locks."""

import time
import unittest

from world import client, component

STORE = "locks"


def resources(data):
    return [component(STORE, "lock.sqlite", connectionString=data / "lock.db")]


class Lock(unittest.TestCase):
    """try_lock and unlock."""

    def test_one_owner_at_a_time(self):
        from dapr.clients.grpc._response import UnlockResponseStatus as Status
        with client() as dapr:
            self.assertTrue(dapr.try_lock(STORE, "helm", "ann", 60).success)
            self.assertFalse(dapr.try_lock(STORE, "helm", "bob", 60).success)
            self.assertEqual(dapr.unlock(STORE, "helm", "bob").status, Status.lock_belongs_to_others)
            self.assertEqual(dapr.unlock(STORE, "helm", "ann").status, Status.success)
            self.assertEqual(dapr.unlock(STORE, "helm", "ann").status, Status.lock_does_not_exist)
            with dapr.try_lock(STORE, "helm", "bob", 60) as taken:
                self.assertTrue(taken)
                self.assertFalse(dapr.try_lock(STORE, "helm", "ann", 60).success)
            self.assertTrue(dapr.try_lock(STORE, "helm", "ann", 60).success, "the context manager released the lock")
            dapr.unlock(STORE, "helm", "ann")

    def test_locks_expire(self):
        with client() as dapr:
            self.assertTrue(dapr.try_lock(STORE, "watch", "ann", 1).success)
            time.sleep(1.2)
            self.assertTrue(dapr.try_lock(STORE, "watch", "bob", 60).success)

    def test_errors(self):
        import grpc
        with client() as dapr, self.assertRaises(grpc.RpcError) as raised:
            dapr.try_lock("nowhere", "helm", "ann", 60)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
