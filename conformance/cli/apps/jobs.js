// Jobs of an app in JavaScript, over HTTP. usage: jobs.js service PORT|caller SERVICE
// The service schedules jobs on request and prints those it receives; the caller asks it through both
// sidecars.
"use strict";

const { DaprClient, HttpMethod } = require("@dapr/dapr");
const express = require("express");

const [role, argument] = process.argv.slice(2);
const sidecar = `http://127.0.0.1:${process.env.DAPR_HTTP_PORT}`;
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function serve(port) {
  const app = express();
  app.use(express.json());
  app.post("/plan/:name", async (request, response) => {
    const url = `${sidecar}/v1.0-alpha1/jobs/${request.params.name}`;
    const body = JSON.stringify({ data: { cargo: "salt" }, dueTime: "1s", overwrite: true });
    const scheduled = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body });
    if (!scheduled.ok) {
      response.status(500).send(await scheduled.text());
      return;
    }
    const { dueTime } = await (await fetch(url)).json();
    response.json({ due: dueTime });
  });
  app.post("/job/:name", (request, response) => {
    console.log("took job", request.params.name, JSON.stringify(request.body));
    response.end();
  });
  app.listen(Number(port), "127.0.0.1");
}

/** Asks until the service is there. */
async function call(service) {
  const dapr = new DaprClient({ daprHost: "127.0.0.1", daprPort: process.env.DAPR_HTTP_PORT });
  for (;;) {
    try {
      const planned = await dapr.invoker.invoke(service, "plan/voyage", HttpMethod.POST, {});
      console.log("planned", JSON.stringify(planned));
      return;
    } catch (error) {
      console.log("not yet:", error.message);
      await sleep(500);
    }
  }
}

if (role === "service") serve(argument);
else call(argument);
