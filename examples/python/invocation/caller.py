"""Calls the method `greet` of the app `service`, through both sidecars."""
import json

from dapr.clients import DaprClient

with DaprClient() as dapr:
    answer = dapr.invoke_method("service", "greet", json.dumps({"name": "Ada"}),
                                content_type="application/json", http_verb="POST")
    print("the service answered:", answer.json()["text"])
