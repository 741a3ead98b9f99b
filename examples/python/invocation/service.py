"""A service that greets its callers over HTTP."""
import os

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Greeting(BaseModel):
    name: str


app = FastAPI()


@app.post("/greet")
def greet(greeting: Greeting):
    print(f"greeting {greeting.name}")
    return {"text": f"Hello, {greeting.name}!"}


uvicorn.run(app, port=int(os.environ["APP_PORT"]), log_level="warning")
