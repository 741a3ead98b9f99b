// Workflows whose worker is this process.
"use strict";

const assert = require("node:assert/strict");
const { randomUUID } = require("node:crypto");
const { DaprWorkflowClient, WorkflowRuntime, WorkflowRuntimeStatus: Status } = require("@dapr/dapr");
const { TIMEOUT, setting, until } = require("../world");

const options = { daprHost: "127.0.0.1", daprPort: setting("GRPC_PORT") };
const client = new DaprWorkflowClient(options);

const double = async (_context, number) => 2 * number;
const broken = async () => {
  throw new Error("beyond repair");
};

async function* chain(context, number) {
  for (let round = 0; round < 3; round += 1) number = yield context.callActivity(double, number);
  return number;
}

async function* fan(context, count) {
  const tasks = Array.from({ length: count }, (_, number) => context.callActivity(double, number));
  const results = yield context.whenAll(tasks);
  return results.reduce((sum, number) => sum + number, 0);
}

async function* sleeper(context, seconds) {
  yield context.createTimer(seconds);
  return "woken";
}

/** What it is told, or 'nothing' after some time. */
async function* asks(context, seconds) {
  const told = context.waitForExternalEvent("answer");
  const late = context.createTimer(seconds);
  const first = yield context.whenAny([told, late]);
  return first === late ? "nothing" : told.getResult();
}

async function* parent(context, number) {
  return yield context.callChildWorkflow(chain, number);
}

async function* waits(context) {
  yield context.callChildWorkflow(asks, 600, `${context.getWorkflowInstanceId()}-child`);
}

async function* fails(context) {
  yield context.callActivity(broken);
}

/** Starts anew for as many rounds; events that came too early are kept. */
async function* again(context, rounds) {
  if (rounds > 0) {
    context.continueAsNew(rounds - 1, true);
    return undefined;
  }
  return yield context.waitForExternalEvent("answer");
}

async function* tells(context, text) {
  context.setCustomStatus(text);
  return yield context.waitForExternalEvent("answer");
}

let started;
/** Starts the worker, once, and an instance. */
async function start(flow, input) {
  started ??= (() => {
    const runtime = new WorkflowRuntime(options);
    for (const one of [chain, fan, sleeper, asks, parent, waits, fails, again, tells]) runtime.registerWorkflow(one);
    for (const one of [double, broken]) runtime.registerActivity(one);
    return runtime.start();
  })();
  await started;
  const id = await client.scheduleNewWorkflow(flow, input, randomUUID());
  await client.waitForWorkflowStart(id, false, TIMEOUT / 1000);
  return id;
}

async function end(id, status = Status.COMPLETED) {
  const state = await client.waitForWorkflowCompletion(id, true, TIMEOUT / 1000);
  assert.equal(Status[state.runtimeStatus], Status[status], state.workflowFailureDetails?.getErrorMessage?.());
  return state;
}

const output = async (flow, input) => (await end(await start(flow, input))).serializedOutput;

const is = (id, status) =>
  until(Status[status], async () => (await client.getWorkflowState(id, false))?.runtimeStatus === status);

module.exports = {
  async "a chain"() {
    const id = await start(chain, 5);
    const state = await end(id);
    assert.deepEqual([state.name, state.instanceId], ["chain", id]);
    assert.deepEqual([state.serializedInput, state.serializedOutput], ["5", "40"]);
  },
  async "a fan-out"() {
    assert.equal(await output(fan, 50), "2450");
  },
  async "many at once"() {
    // The SDK treats a result of 0 as none.
    const numbers = Array.from({ length: 30 }, (_, number) => number + 1);
    const outputs = await Promise.all(numbers.map((number) => output(chain, number)));
    assert.deepEqual(outputs, numbers.map((number) => String(8 * number)));
  },
  async "a timer"() {
    const before = Date.now();
    assert.equal(await output(sleeper, 1), '"woken"');
    assert.ok(Date.now() - before >= 1000);
  },
  async "events, and a timeout without one"() {
    const id = await start(asks, 600);
    await client.raiseEvent(id, "answer", { yes: true });
    assert.deepEqual(JSON.parse((await end(id)).serializedOutput), { yes: true });
    assert.equal(await output(asks, 1), '"nothing"');
  },
  async "children that outlive their parent"() {
    assert.equal(await output(parent, 3), "24");
    const id = await start(waits);
    await is(`${id}-child`, Status.RUNNING);
    await client.terminateWorkflow(id, "enough");
    // The SDK requests only the instance, without children.
    assert.equal((await end(id, Status.TERMINATED)).serializedOutput, '"enough"');
    await client.raiseEvent(`${id}-child`, "answer", "still here");
    assert.equal((await end(`${id}-child`)).serializedOutput, '"still here"');
  },
  async "pause and resume"() {
    const id = await start(asks, 600);
    await client.suspendWorkflow(id);
    await is(id, Status.SUSPENDED);
    await client.raiseEvent(id, "answer", "late");
    await client.resumeWorkflow(id);
    assert.equal((await end(id)).serializedOutput, '"late"');
  },
  async purge() {
    const id = await start(chain, 1);
    await end(id);
    assert.equal(await client.purgeWorkflow(id), true);
    assert.equal(await client.getWorkflowState(id, false), undefined);
  },
  async "an activity that fails"() {
    const state = await end(await start(fails), Status.FAILED);
    assert.match(state.workflowFailureDetails.getErrorMessage(), /beyond repair/);
  },
  async "continue as new"() {
    const id = await start(again, 5);
    await client.raiseEvent(id, "answer", "kept");
    assert.equal((await end(id)).serializedOutput, '"kept"');
  },
  async "custom status"() {
    const id = await start(tells, "at sea");
    await until("the status", async () => (await client.getWorkflowState(id, true)).customStatus?.includes("at sea"));
    await client.raiseEvent(id, "answer");
    await end(id);
  },
  async errors() {
    assert.equal(await client.getWorkflowState("nobody", false), undefined);
    const id = await start(asks, 600);
    await assert.rejects(client.scheduleNewWorkflow(asks, 1, id), /already exists/);
    await client.terminateWorkflow(id, "");
    await end(id, Status.TERMINATED);
  },
};
