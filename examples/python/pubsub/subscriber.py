"""Receives the orders that are published on the topic `orders`."""
import os

import uvicorn
from dapr.ext.fastapi import DaprApp
from fastapi import Body, FastAPI

app = FastAPI()
dapr = DaprApp(app)


@dapr.subscribe(pubsub="pubsub", topic="orders")
def receive(event=Body()):
    # Delivery is at least once: a handler that changes something must be idempotent.
    print("received order", event["data"]["id"])
    return {"status": "SUCCESS"}


uvicorn.run(app, port=int(os.environ["APP_PORT"]), log_level="warning")
