"""Hosts actors of the type `Counter`, whose count is in the state store."""
import os
from contextlib import asynccontextmanager

import uvicorn
from counter import CounterInterface
from dapr.actor import Actor
from dapr.ext.fastapi import DaprActor
from fastapi import FastAPI


class Counter(Actor, CounterInterface):
    async def increment(self, by):
        # Calls to one actor run one at a time, so no increment is lost.
        found, count = await self._state_manager.try_get_state("count")
        count = (count if found else 0) + by
        await self._state_manager.set_state("count", count)
        print(f"{self.id.id} is incremented to {count}")
        return count


@asynccontextmanager
async def lifespan(app):
    await DaprActor(app).register_actor(Counter)
    yield


uvicorn.run(FastAPI(lifespan=lifespan), port=int(os.environ["APP_PORT"]), log_level="warning")
