// Hosts actors of the type `Counter`.
"use strict";

const { DaprServer, LogLevel } = require("@dapr/dapr");
const { Counter } = require("./counter");

async function main() {
  const server = new DaprServer({ serverPort: process.env.APP_PORT, logger: { level: LogLevel.Warn } });
  await server.actor.init();
  await server.actor.registerActor(Counter);
  await server.start();
}

main();
