// A workflow on the JavaScript SDK, with worker and client in one app. usage: order.js
"use strict";

const { DaprWorkflowClient, WorkflowRuntime } = require("@dapr/dapr");

const reserve = async (_context, item) => {
  console.log("reserved", item);
};
const ship = async (_context, item) => `${item} shipped`;

async function* order(context, item) {
  yield context.callActivity(reserve, item);
  return yield context.callActivity(ship, item);
}

async function main() {
  const runtime = new WorkflowRuntime();
  runtime.registerWorkflow(order).registerActivity(reserve).registerActivity(ship);
  await runtime.start();
  const client = new DaprWorkflowClient();
  const instance = await client.scheduleNewWorkflow(order, "anchor");
  const state = await client.waitForWorkflowCompletion(instance, undefined, 60);
  // WorkflowRuntimeStatus.COMPLETED is 1.
  console.log(`workflow ${state.runtimeStatus === 1 ? "COMPLETED" : state.runtimeStatus}: ${state.serializedOutput}`);
  // Until a signal: the CLI may lose the last lines of an app that exits.
  setInterval(() => {}, 60000);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
