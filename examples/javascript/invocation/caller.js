// Calls the method `greet` of the app `service`, through both sidecars.
"use strict";

const { DaprClient, HttpMethod, LogLevel } = require("@dapr/dapr");

async function main() {
  const client = new DaprClient({ logger: { level: LogLevel.Warn } });
  const answer = await client.invoker.invoke("service", "greet", HttpMethod.POST, { name: "Ada" });
  console.log(`the service answered: ${answer.text}`);
}

main();
