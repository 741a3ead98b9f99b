// Publishes three orders on the topic `orders`.
"use strict";

const { DaprClient, LogLevel } = require("@dapr/dapr");

async function main() {
  const client = new DaprClient({ logger: { level: LogLevel.Warn } });
  for (const id of [1, 2, 3]) {
    const { error } = await client.pubsub.publish("pubsub", "orders", { id });
    if (error) throw error;
    console.log(`published order ${id}`);
  }
}

main();
