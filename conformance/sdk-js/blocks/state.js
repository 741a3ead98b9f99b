// State, over both protocols.
"use strict";

const assert = require("node:assert/strict");
const { clients } = require("../world");

const STORE = "state";

module.exports = {
  async "a value lives from save to delete"() {
    for (const [protocol, { state }] of Object.entries(clients)) {
      const key = `life-${protocol}`;
      const saved = await state.save(STORE, [{ key, value: { born: true } }]);
      assert.equal(saved.error, undefined);
      assert.deepEqual(await state.get(STORE, key), { born: true });
      await state.delete(STORE, key);
      assert.equal(await state.get(STORE, key), "");
    }
  },
  async "several at once"() {
    for (const [protocol, { state }] of Object.entries(clients)) {
      const keys = Array.from({ length: 20 }, (_, n) => `${protocol}-${n}`);
      await state.save(STORE, keys.map((key) => ({ key, value: key })));
      const found = await state.getBulk(STORE, keys);
      assert.deepEqual(found.map(({ key, data }) => [key, data]).sort(), keys.map((key) => [key, key]).sort());
    }
  },
  async "transactions are whole"() {
    for (const [protocol, { state }] of Object.entries(clients)) {
      const [old, fresh] = [`old-${protocol}`, `new-${protocol}`];
      await state.save(STORE, [{ key: old, value: "x" }]);
      await state.transaction(STORE, [
        { operation: "upsert", request: { key: fresh, value: "1" } },
        { operation: "delete", request: { key: old } },
      ]);
      assert.deepEqual([String(await state.get(STORE, fresh)), await state.get(STORE, old)], ["1", ""]);
    }
  },
  async errors() {
    for (const { state } of Object.values(clients)) {
      await assert.rejects(state.get("nowhere", "k"), /nowhere/);
    }
  },
};
