// Saves, reads, changes and deletes an order in the state store `statestore`.
"use strict";

const { CommunicationProtocolEnum, DaprClient, LogLevel, StateConcurrencyEnum } = require("@dapr/dapr");

const STORE = "statestore";
const KEY = "order-7";

async function main() {
  const { state } = new DaprClient({ logger: { level: LogLevel.Warn } });
  await state.save(STORE, [{ key: KEY, value: { item: "boat", amount: 1 } }]);
  const [{ data: order, etag }] = await state.getBulk(STORE, [KEY]);
  console.log(`order 7: ${order.amount} ${order.item}`);

  // The ETag makes the write fail if another process changed the order in between.
  const options = { concurrency: StateConcurrencyEnum.CONCURRENCY_FIRST_WRITE };
  const { error } = await state.save(STORE, [{ key: KEY, value: { ...order, amount: 2 }, etag, options }]);
  if (error) throw error;
  console.log(`order 7: ${(await state.get(STORE, KEY)).amount} ${order.item}`);

  // The store applies both operations or neither.
  await state.transaction(STORE, [
    { operation: "upsert", request: { key: "shipped-7", value: { ...order, amount: 2 } } },
    { operation: "delete", request: { key: KEY } },
  ]);
  if (!(await state.get(STORE, KEY))) console.log("order 7 was deleted");
}

main();
