// Schedules a job and runs it when the scheduler triggers it. The SDK has no jobs: the app calls the HTTP API.
"use strict";

const { DaprServer, HttpMethod, LogLevel } = require("@dapr/dapr");

async function schedule() {
  const url = `http://127.0.0.1:${process.env.DAPR_HTTP_PORT}/v1.0/jobs/reminder`;
  const job = { dueTime: "1s", data: { task: "water the plants" }, overwrite: true };
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(job),
  });
  if (!answer.ok) throw new Error(await answer.text());
  console.log("scheduled the job reminder");
}

async function main() {
  const server = new DaprServer({ serverPort: process.env.APP_PORT, logger: { level: LogLevel.Warn } });
  await server.invoker.listen("job/reminder", async ({ body }) => {
    console.log(`job reminder: ${JSON.parse(body).task}`);
  }, { method: HttpMethod.POST });
  // The server has started when the sidecar is ready.
  await server.start();
  await schedule();
}

main();
