"""An app served with FastAPI. usage: app_http.py PORT"""

import sys

import uvicorn
from fastapi import FastAPI, Request, Response

app = FastAPI()


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


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
