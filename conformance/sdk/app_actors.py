"""The actors of the HTTP app, and their interface for callers."""

import asyncio
import base64
import collections
from datetime import timedelta

from dapr.actor import Actor, ActorId, ActorInterface, ActorProxy, Remindable, actormethod
from dapr.actor.runtime.config import ActorReentrancyConfig, ActorRuntimeConfig, ActorTypeConfig

BRIEFLY = timedelta(milliseconds=200)


class ShipInterface(ActorInterface):
    """The methods of a ship, with at most one argument each."""

    @actormethod(name="load")
    async def load(self, tons: int) -> int: ...

    @actormethod(name="overload")
    async def overload(self) -> None: ...

    @actormethod(name="cargo")
    async def cargo(self) -> int: ...

    @actormethod(name="state")
    async def state(self, request: object) -> object: ...

    @actormethod(name="log")
    async def log(self) -> object: ...

    @actormethod(name="watch")
    async def watch(self, on: bool) -> None: ...

    @actormethod(name="remind")
    async def remind(self, on: bool) -> None: ...

    @actormethod(name="hail")
    async def hail(self, other: str) -> int: ...

    @actormethod(name="answer")
    async def answer(self, caller: str) -> int: ...


class Ship(Actor, ShipInterface, Remindable):
    """Its cargo is state; its log is in the process, for all ships, so that it survives deactivation."""

    logs = collections.defaultdict(list)

    async def _on_activate(self):
        self.logs[self.id.id].append("activated")

    async def _on_deactivate(self):
        self.logs[self.id.id].append("deactivated")

    async def load(self, tons):
        has, before = await self._state_manager.try_get_state("tons")
        # A concurrent turn between here and the write would be lost.
        await asyncio.sleep(0.01)
        total = (before if has else 0) + tons
        await self._state_manager.set_state("tons", total)
        return total

    async def overload(self):
        await self._state_manager.set_state("tons", 10**6)
        raise RuntimeError("the ship sinks")

    async def cargo(self):
        has, tons = await self._state_manager.try_get_state("tons")
        return tons if has else 0

    async def state(self, request):
        manager, name = self._state_manager, request["name"]
        if request["do"] == "add":
            return await manager.try_add_state(name, request["value"])
        if request["do"] == "expire":
            return await manager.set_state_ttl(name, request["value"], request["seconds"])
        if request["do"] == "remove":
            return await manager.try_remove_state(name)
        await manager.clear_cache()
        return await manager.try_get_state(name)

    async def log(self):
        return self.logs[self.id.id]

    async def watch(self, on):
        if on:
            await self.register_timer("watch", self.tick, {"bell": 8}, BRIEFLY, BRIEFLY)
        else:
            await self.unregister_timer("watch")

    async def tick(self, state):
        self.logs[self.id.id].append(["timer", state])

    async def remind(self, on):
        if on:
            await self.register_reminder("tide", b"high", BRIEFLY, BRIEFLY)
        else:
            await self.unregister_reminder("tide")

    async def receive_reminder(self, name, state, due_time, period, ttl=None):
        self.logs[self.id.id].append(["reminder", name, base64.b64encode(state).decode()])

    async def hail(self, other):
        return await ActorProxy.create("Ship", ActorId(other), ShipInterface).answer(self.id.id)

    async def answer(self, caller):
        """Calls back while the caller is in its turn."""
        return await ActorProxy.create("Ship", ActorId(caller), ShipInterface).cargo()


class Raft(Ship, Remindable):
    """A ship with a short idle timeout. The SDK looks for Remindable among the direct bases only."""


CONFIG = ActorRuntimeConfig(
    reentrancy=ActorReentrancyConfig(enabled=True),
    actor_type_configs=[ActorTypeConfig("Raft", actor_idle_timeout=timedelta(seconds=1))])
