"""An app served with FastAPI and the SDK's extension. usage: app_http.py PORT"""

import collections
import contextlib
import sys

import app_actors
import uvicorn
from dapr.actor.runtime.runtime import ActorRuntime
from dapr.ext.fastapi import DaprActor, DaprApp
from fastapi import FastAPI, Request, Response


@contextlib.asynccontextmanager
async def lifespan(app):
    ActorRuntime.set_actor_config(app_actors.CONFIG)
    actors = DaprActor(app)
    for kind in (app_actors.Ship, app_actors.Raft):
        await actors.register_actor(kind)
    yield


app = FastAPI(lifespan=lifespan)
dapr = DaprApp(app)
# Received events, by topic or job.
taken = collections.defaultdict(list)


@app.api_route("/echo", methods=["GET", "POST", "PUT", "DELETE", "PATCH"])
async def echo(request: Request):
    return {
        "method": request.method,
        "text": (await request.body()).decode(),
        "query": dict(request.query_params),
        "headers": dict(request.headers),
    }


@app.post("/bytes")
async def raw(request: Request):
    return Response(await request.body(), media_type=request.headers.get("content-type"))


@app.post("/tick")
async def tick():
    return {}


@app.get("/status/{code}")
async def status(code: int):
    return Response(f"status {code}", status_code=code, headers={"x-answered-by": "app-http"})


@app.get("/taken")
async def tell():
    return taken


@dapr.subscribe("events", "decorated", route="/ships", dead_letter_topic="dead")
async def decorated(request: Request):
    event = await request.json()
    taken["decorated"].append(event)
    return {"status": "DROP" if event["data"] == "poison" else "SUCCESS"}


@dapr.subscribe("events", "dead")
async def dead(request: Request):
    taken["dead"].append(await request.json())


@dapr.subscribe("events", "tried")
async def tried(request: Request):
    taken["tried"].append(await request.json())
    return {"status": "RETRY" if len(taken["tried"]) < 3 else "SUCCESS"}


@dapr.subscribe("events", "raw", metadata={"rawPayload": "true"})
async def raw_event(request: Request):
    taken["raw"].append(await request.json())


@app.post("/declared/{what}")
async def declared(what: str, request: Request):
    taken[what].append(await request.json())


@app.post("/job/{name}")
async def job(name: str, request: Request):
    taken[name].append(await request.json())
    return Response(status_code=500 if name == "fails" and len(taken[name]) < 3 else 200)


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
