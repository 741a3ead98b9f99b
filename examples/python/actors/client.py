"""Increments the counter `visits` three times."""
import asyncio

from counter import CounterInterface
from dapr.actor import ActorId, ActorProxy


async def main():
    counter = ActorProxy.create("Counter", ActorId("visits"), CounterInterface)
    for _ in range(3):
        print("counter visits:", await counter.increment(1))


asyncio.run(main())
