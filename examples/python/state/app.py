"""Saves, reads, changes and deletes an order in the state store `statestore`."""
import json

from dapr.clients import DaprClient
from dapr.clients.grpc._request import TransactionalStateOperation, TransactionOperationType
from dapr.clients.grpc._state import Concurrency, StateOptions

STORE, KEY = "statestore", "order-7"

with DaprClient() as dapr:
    dapr.save_state(STORE, KEY, json.dumps({"item": "boat", "amount": 1}))
    saved = dapr.get_state(STORE, KEY)
    order = saved.json()
    print(f"order 7: {order['amount']} {order['item']}")

    # The ETag makes the write fail if another process changed the order in between.
    order["amount"] = 2
    dapr.save_state(STORE, KEY, json.dumps(order), etag=saved.etag,
                    options=StateOptions(concurrency=Concurrency.first_write))
    print(f"order 7: {dapr.get_state(STORE, KEY).json()['amount']} {order['item']}")

    # The store applies both operations or neither.
    dapr.execute_state_transaction(STORE, [
        TransactionalStateOperation("shipped-7", json.dumps(order)),
        TransactionalStateOperation(KEY, operation_type=TransactionOperationType.delete),
    ])
    if not dapr.get_state(STORE, KEY).data:
        print("order 7 was deleted")
