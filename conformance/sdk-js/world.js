// Shared by all blocks: clients and waiting.
"use strict";

const { CommunicationProtocolEnum, DaprClient, HttpMethod, LogLevel } = require("@dapr/dapr");

// The SDK logs every workflow step, which cannot be disabled.
console.info = () => {};

const { HTTP, GRPC } = CommunicationProtocolEnum;
const TIMEOUT = 20_000;

/** Something that drive.py tells of the fleet. */
function setting(name) {
  const value = process.env[`CHECK_${name}`];
  if (value === undefined) throw new Error(`CHECK_${name} is not set: start this with conformance/sdk-js/run`);
  return value;
}

/** Clients of the caller's sidecar, by protocol; the SDK takes the token from the environment. */
const clients = Object.fromEntries(
  [HTTP, GRPC].map((protocol) => [
    protocol,
    new DaprClient({
      daprHost: "127.0.0.1",
      daprPort: setting(protocol === HTTP ? "HTTP_PORT" : "GRPC_PORT"),
      communicationProtocol: protocol,
      logger: { level: LogLevel.Error },
    }),
  ]),
);

const APPS = ["HTTP_APP", "GRPC_APP"];

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** The value of a condition, as soon as it is true. */
async function until(what, condition) {
  const deadline = Date.now() + TIMEOUT;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`timed out waiting for: ${what}`);
    await sleep(50);
  }
}

/** What an app took of a topic, when there are so many that match. */
function taken(app, topic, count, matching = () => true) {
  return until(`${count} of ${topic} at ${app}`, async () => {
    const all = await clients[HTTP].invoker.invoke(setting(app), "taken", HttpMethod.GET);
    const found = (all[topic] ?? []).filter(matching);
    return found.length >= count && found;
  });
}

module.exports = { APPS, GRPC, HTTP, TIMEOUT, clients, setting, sleep, taken, until };
