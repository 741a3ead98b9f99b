// Actors of the HTTP app, called through another sidecar.
"use strict";

const assert = require("node:assert/strict");
const { randomUUID } = require("node:crypto");
const { ActorId, ActorProxyBuilder } = require("@dapr/dapr");
const { Ship } = require("../ship");
const { HTTP, clients, sleep, until } = require("../world");

const ship = (id = randomUUID()) => new ActorProxyBuilder(Ship, clients[HTTP]).build(new ActorId(id));

/** Something is heard several times, until it is switched off. */
async function heard(entry, method) {
  const one = ship();
  await one[method](true);
  await until(entry, async () => (await one.log()).filter((other) => other === entry).length >= 3);
  await one[method](false);
  const before = await one.log();
  await sleep(600);
  assert.deepEqual(await one.log(), before);
}

module.exports = {
  async "turns come one after another"() {
    const one = ship();
    const totals = await Promise.all(Array.from({ length: 30 }, () => one.load(1)));
    const expected = Array.from({ length: 30 }, (_, n) => n + 1);
    assert.deepEqual(totals.map(({ total }) => total).sort((a, b) => a - b), expected);
    assert.deepEqual(await one.log(), ["activated"]);
  },
  async "many actors"() {
    const totals = await Promise.all(Array.from({ length: 30 }, (_, n) => ship().load(n + 1)));
    assert.deepEqual(totals.map(({ total }) => total), Array.from({ length: 30 }, (_, n) => n + 1));
  },
  async timers() {
    await heard("timer bell", "watch");
  },
  async reminders() {
    await heard("reminder high", "remind");
  },
  async errors() {
    await assert.rejects(ship().sink());
    await assert.rejects(ship().fly());
    class Plane {}
    const plane = new ActorProxyBuilder(Plane, clients[HTTP]).build(new ActorId("x"));
    await assert.rejects(plane.fly(), /did not find address for actor/);
  },
};
