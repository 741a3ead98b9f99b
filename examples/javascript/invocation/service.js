// A service that greets its callers over HTTP.
"use strict";

const { DaprServer, HttpMethod, LogLevel } = require("@dapr/dapr");

async function main() {
  const server = new DaprServer({ serverPort: process.env.APP_PORT, logger: { level: LogLevel.Warn } });
  await server.invoker.listen("greet", async ({ body }) => {
    const { name } = JSON.parse(body);
    console.log(`greeting ${name}`);
    return { text: `Hello, ${name}!` };
  }, { method: HttpMethod.POST });
  await server.start();
}

main();
