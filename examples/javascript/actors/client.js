// Increments the counter `visits` three times.
"use strict";

const { ActorId, ActorProxyBuilder, DaprClient, LogLevel } = require("@dapr/dapr");
const { Counter } = require("./counter");

async function main() {
  const client = new DaprClient({ logger: { level: LogLevel.Warn } });
  const counter = new ActorProxyBuilder(Counter, client).build(new ActorId("visits"));
  for (let call = 0; call < 3; call += 1) {
    console.log(`counter visits: ${await counter.increment(1)}`);
  }
}

main();
