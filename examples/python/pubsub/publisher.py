"""Publishes three orders on the topic `orders`."""
import json

from dapr.clients import DaprClient

with DaprClient() as dapr:
    for number in (1, 2, 3):
        dapr.publish_event("pubsub", "orders", json.dumps({"id": number}), data_content_type="application/json")
        print("published order", number)
