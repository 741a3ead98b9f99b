// Processes an order as a workflow: reserve, pack, ship. usage: app.js [SECONDS TO PACK]
// After a crash, start the app again: the workflow continues where it stopped.
"use strict";

const { DaprWorkflowClient, WorkflowRuntime } = require("@dapr/dapr");

// The SDK logs every step with console.info and has no setting that turns it off.
console.info = () => {};

const INSTANCE = "order-7";

async function* processOrder(context, order) {
  yield context.callActivity(reserve, order.id);
  yield context.createTimer(order.packSeconds);
  const id = yield context.callActivity(ship, order.id);
  return `order ${id} shipped`;
}

async function reserve(_context, id) {
  console.log(`reserved the stock for order ${id}`);
}

async function ship(_context, id) {
  console.log(`shipped order ${id}`);
  return id;
}

async function main() {
  const runtime = new WorkflowRuntime();
  runtime.registerWorkflow(processOrder).registerActivity(reserve).registerActivity(ship);
  await runtime.start();
  const client = new DaprWorkflowClient();
  if (!(await client.getWorkflowState(INSTANCE, false))) {
    console.log(`starting the workflow ${INSTANCE}`);
    const packSeconds = Number(process.argv[2] ?? 1);
    await client.scheduleNewWorkflow(processOrder, { id: 7, packSeconds }, INSTANCE);
  }
  const state = await client.waitForWorkflowCompletion(INSTANCE, true, 120);
  console.log(`the workflow returned: ${JSON.parse(state.serializedOutput)}`);
  await client.stop();
  await runtime.stop();
}

main();
