// Receives the orders that are published on the topic `orders`.
"use strict";

const { DaprServer, LogLevel } = require("@dapr/dapr");

async function main() {
  const server = new DaprServer({ serverPort: process.env.APP_PORT, logger: { level: LogLevel.Warn } });
  // Delivery is at least once: a handler that changes something must be idempotent.
  await server.pubsub.subscribe("pubsub", "orders", async (order) => {
    console.log(`received order ${order.id}`);
  });
  await server.start();
}

main();
