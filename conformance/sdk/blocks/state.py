"""State: values, ETags, expiry, several at once, transactions, queries."""

import json
import time
import unittest

import servers
from world import client, component, started

STORE = "sqlite"


def resources(data):
    kinds = [component(STORE, "state.sqlite", connectionString=data / "state.db", cleanupInterval="1h"),
             component("memory", "state.in-memory")]
    try:
        postgres = servers.Postgres(started["fleet"])
        kinds.append(component("postgres", "state.postgresql", connectionString=postgres.text))
        started["postgres"] = postgres
    except servers.Missing as missing:
        started["no postgres"] = str(missing)
    return kinds


class State(unittest.TestCase):
    """The state methods of DaprClient."""

    def test_a_value_lives_from_save_to_delete(self):
        for store in (STORE, "memory"):
            with client() as dapr:
                dapr.save_state(store, "life", "born")
                self.assertEqual(dapr.get_state(store, "life").text(), "born")
                dapr.delete_state(store, "life")
                self.assertEqual(dapr.get_state(store, "life").data, b"")

    def test_bytes_survive(self):
        value = bytes(range(256)) * 256
        with client() as dapr:
            dapr.save_state(STORE, "bytes", value)
            self.assertEqual(dapr.get_state(STORE, "bytes").data, value)

    def test_etags_guard(self):
        import grpc
        from dapr.clients.grpc._state import Concurrency, Consistency, StateOptions
        options = StateOptions(consistency=Consistency.strong, concurrency=Concurrency.first_write)
        with client() as dapr:
            dapr.save_state(STORE, "guarded", "1")
            first = dapr.get_state(STORE, "guarded").etag
            dapr.save_state(STORE, "guarded", "2", etag=first, options=options)
            second = dapr.get_state(STORE, "guarded").etag
            self.assertNotEqual(first, second)
            for attempt in (lambda: dapr.save_state(STORE, "guarded", "3", etag=first, options=options),
                            lambda: dapr.delete_state(STORE, "guarded", etag=first, options=options)):
                with self.assertRaises(grpc.RpcError) as raised:
                    attempt()
                self.assertEqual(raised.exception.code(), grpc.StatusCode.ABORTED)
            self.assertEqual(dapr.get_state(STORE, "guarded").text(), "2")
            dapr.delete_state(STORE, "guarded", etag=second)

    def test_values_expire(self):
        with client() as dapr:
            dapr.save_state(STORE, "short", "lived", state_metadata={"ttlInSeconds": "1"})
            dapr.save_state(STORE, "long", "lived", state_metadata={"ttlInSeconds": "600"})
            self.assertEqual(dapr.get_state(STORE, "short").text(), "lived")
            time.sleep(2.1)
            self.assertEqual(dapr.get_state(STORE, "short").data, b"")
            self.assertEqual(dapr.get_state(STORE, "long").text(), "lived")

    def test_several_at_once(self):
        from dapr.clients.grpc._state import StateItem
        with client() as dapr:
            dapr.save_bulk_state(STORE, [StateItem(key=f"b{n}", value=str(n)) for n in range(20)])
            items = dapr.get_bulk_state(STORE, [f"b{n}" for n in range(21)], parallelism=4).items
        found = {item.key: item.text() for item in items}
        self.assertEqual(found, {**{f"b{n}": str(n) for n in range(20)}, "b20": ""})

    def test_transactions_are_whole(self):
        import grpc
        from dapr.clients.grpc._request import TransactionalStateOperation as Step
        from dapr.clients.grpc._request import TransactionOperationType as Kind
        with client() as dapr:
            dapr.save_state(STORE, "old", "x")
            dapr.execute_state_transaction(STORE, [
                Step(key="new", data="1", operation_type=Kind.upsert), Step(key="old", operation_type=Kind.delete)])
            self.assertEqual(dapr.get_state(STORE, "new").text(), "1")
            self.assertEqual(dapr.get_state(STORE, "old").data, b"")
            with self.assertRaises(grpc.RpcError):
                dapr.execute_state_transaction(STORE, [
                    Step(key="never", data="1", operation_type=Kind.upsert),
                    Step(key="new", data="2", etag="wrong", operation_type=Kind.upsert)])
            self.assertEqual(dapr.get_state(STORE, "never").data, b"")
            self.assertEqual(dapr.get_state(STORE, "new").text(), "1")

    def test_queries(self):
        if "postgres" not in started:
            self.skipTest(started["no postgres"])
        with client() as dapr:
            for number, city in enumerate(("Oslo", "Rome", "Oslo", "Bonn")):
                value = json.dumps({"city": city, "number": number})
                dapr.save_state("postgres", f"q{number}", value, state_metadata={"contentType": "application/json"})
            query = {"filter": {"IN": {"city": ["Oslo", "Rome"]}}, "sort": [{"key": "number", "order": "DESC"}],
                     "page": {"limit": 2}}
            page = dapr.query_state("postgres", json.dumps(query))
            self.assertEqual([item.key for item in page.results], ["q2", "q1"])
            self.assertEqual(page.results[0].json(), {"city": "Oslo", "number": 2})
            query["page"]["token"] = page.token
            page = dapr.query_state("postgres", json.dumps(query))
            self.assertEqual([item.key for item in page.results], ["q0"])

    def test_errors_have_their_codes(self):
        import grpc
        from dapr.clients.exceptions import DaprGrpcError
        with client() as dapr, self.assertRaises(DaprGrpcError) as raised:
            dapr.get_state("nowhere", "k")
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(raised.exception.error_code(), "DAPR_STATE_NOT_FOUND")
        with client() as dapr, self.assertRaises(grpc.RpcError) as raised:
            dapr.query_state(STORE, "{}")
        self.assertIn("does not support querying", raised.exception.details())
