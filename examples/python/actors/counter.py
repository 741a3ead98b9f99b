"""The interface of the actor type `Counter`, for its service and its clients."""
from dapr.actor import ActorInterface, actormethod


class CounterInterface(ActorInterface):
    @actormethod(name="increment")
    async def increment(self, by: int) -> int: ...
