"""Actors of the HTTP app, called through another sidecar."""

import asyncio
import base64
import logging
import time
import unittest
import uuid

from world import TIMEOUT

# In debug mode asyncio logs every step that took 100 ms.
logging.getLogger("asyncio").setLevel(logging.ERROR)


class Actors(unittest.IsolatedAsyncioTestCase):
    """ActorProxy, and the actors of the FastAPI extension."""

    def ship(self, id=None, kind="Ship"):
        # The SDK reads its settings at import, so it is imported once the sidecars have ports.
        from app_actors import ShipInterface
        from dapr.actor import ActorId, ActorProxy
        return ActorProxy.create(kind, ActorId(id or str(uuid.uuid4())), ShipInterface)

    async def logged(self, ship, wanted):
        """The log of a ship, once it has the wanted entries."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            log = await ship.log()
            if wanted(log):
                return log
            self.assertLess(time.monotonic(), deadline, log)
            await asyncio.sleep(0.05)

    async def test_state_outlives_an_activation(self):
        raft = self.ship(kind="Raft")
        self.assertEqual(await raft.load(3), 3)
        # A call would keep it active: it is deactivated after a second idle, checked as often.
        await asyncio.sleep(3)
        log = await self.logged(raft, lambda log: "deactivated" in log)
        self.assertEqual(log[:3], ["activated", "deactivated", "activated"])
        self.assertEqual(await raft.load(4), 7)

    async def test_turns_come_one_after_another(self):
        ship = self.ship()
        totals = await asyncio.gather(*(ship.load(1) for _ in range(50)))
        self.assertEqual(sorted(totals), list(range(1, 51)))
        self.assertEqual(await ship.cargo(), 50)

    async def test_many_ships(self):
        ships = [self.ship() for _ in range(50)]
        self.assertEqual(await asyncio.gather(*(ship.load(n) for n, ship in enumerate(ships))), list(range(50)))

    async def test_a_turn_that_fails_changes_nothing(self):
        from dapr.clients.exceptions import DaprInternalError
        ship = self.ship()
        await ship.load(5)
        with self.assertRaisesRegex(DaprInternalError, "the ship sinks"):
            await ship.overload()
        self.assertEqual(await ship.cargo(), 5)

    async def test_state(self):
        ship = self.ship()
        self.assertTrue(await ship.state({"do": "add", "name": "flag", "value": "red"}))
        self.assertFalse(await ship.state({"do": "add", "name": "flag", "value": "blue"}))
        self.assertEqual(await ship.state({"do": "get", "name": "flag"}), [True, "red"])
        self.assertTrue(await ship.state({"do": "remove", "name": "flag"}))
        self.assertEqual(await ship.state({"do": "get", "name": "flag"}), [False, None])

    async def test_state_expires(self):
        ship = self.ship()
        await ship.state({"do": "expire", "name": "light", "value": "on", "seconds": 4})
        found = await ship.state({"do": "get", "name": "light"})
        self.assertEqual(found, [True, "on"])
        deadline = time.monotonic() + 20
        while found[0] and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            found = await ship.state({"do": "get", "name": "light"})
        self.assertEqual(found, [False, None])

    async def test_timers(self):
        ship = self.ship()
        await ship.watch(True)
        tick = ["timer", {"bell": 8}]
        await self.logged(ship, lambda log: log.count(tick) >= 3)
        await self.quiet(ship, ship.watch)

    async def test_reminders(self):
        ship = self.ship()
        await ship.remind(True)
        tide = ["reminder", "tide", base64.b64encode(b"high").decode()]
        await self.logged(ship, lambda log: log.count(tide) >= 3)
        await self.quiet(ship, ship.remind)

    async def quiet(self, ship, switch):
        """Nothing arrives after it is cancelled."""
        await switch(False)
        before = await ship.log()
        await asyncio.sleep(0.7)
        self.assertEqual(await ship.log(), before)

    async def test_a_reminder_wakes_an_actor(self):
        raft = self.ship(kind="Raft")
        await raft.remind(True)
        await self.logged(raft, lambda log: any("tide" in entry for entry in log))
        await raft.remind(False)

    async def test_reentrancy(self):
        first, second = self.ship(), str(uuid.uuid4())
        await first.load(12)
        self.assertEqual(await asyncio.wait_for(first.hail(second), TIMEOUT), 12)

    async def test_errors(self):
        from dapr.actor import ActorId, ActorProxy
        from dapr.clients.exceptions import DaprInternalError
        ship = ActorProxy.create("Ship", ActorId("x"))
        with self.assertRaises(DaprInternalError):
            await ship.invoke_method("fly")
        with self.assertRaisesRegex(DaprInternalError, "no address found for actor|did not find address for actor"):
            await ActorProxy.create("Plane", ActorId("x")).invoke_method("fly")
