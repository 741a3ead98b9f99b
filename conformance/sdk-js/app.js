// An app served with the SDK. usage: app.js http|grpc PORT SIDECAR_PORT
"use strict";

const { CommunicationProtocolEnum, DaprPubSubStatusEnum, DaprServer, HttpMethod, LogLevel } = require("@dapr/dapr");
const { Ship } = require("./ship");

const [kind, port, sidecar] = process.argv.slice(2);
const server = new DaprServer({
  serverHost: "127.0.0.1",
  serverPort: port,
  communicationProtocol: kind === "grpc" ? CommunicationProtocolEnum.GRPC : CommunicationProtocolEnum.HTTP,
  clientOptions: { daprHost: "127.0.0.1", daprPort: sidecar },
  logger: { level: LogLevel.Warn },
});
// Received events, by topic.
const taken = {};

/** Keeps the events of a topic; `answer` tells what becomes of one, from its data and how many there are. */
function subscribe(topic, answer, options = {}) {
  taken[topic] = [];
  return server.pubsub.subscribeWithOptions("events", topic, {
    ...options,
    callback: async (data) => answer(data, taken[topic].push(data)),
  });
}

async function main() {
  const { SUCCESS, RETRY, DROP } = DaprPubSubStatusEnum;
  await server.invoker.listen("echo", async (request) => ({ body: request.body, query: request.query }), {
    method: HttpMethod.POST,
  });
  await server.invoker.listen("taken", async () => taken, { method: HttpMethod.GET });
  await subscribe("ships", (data) => (data === "poison" ? DROP : SUCCESS), { deadLetterTopic: "dead" });
  await subscribe("dead", () => SUCCESS);
  await subscribe("tried", (_data, count) => (count < 3 ? RETRY : SUCCESS));
  await subscribe("many", () => SUCCESS, { bulkSubscribe: { enabled: true, maxMessagesCount: 10 } });
  const rules = [{ match: "event.type == 'boat'", path: "/boats" }];
  taken.routed = [];
  await server.pubsub.subscribeWithOptions("events", "routed", { route: { default: "/others", rules } });
  for (const route of ["/boats", "/others"]) {
    server.pubsub.subscribeToRoute("events", "routed", route, async (data) => {
      taken.routed.push({ route, data });
    });
  }
  if (kind === "http") {
    await server.actor.init();
    await server.actor.registerActor(Ship);
  }
  await server.start();
}

process.on("SIGTERM", () => process.exit(0));
main();
