// Publish/subscribe: over both protocols, to both apps.
"use strict";

const assert = require("node:assert/strict");
const { randomUUID } = require("node:crypto");
const { APPS, clients, taken } = require("../world");

const BROKER = "events";

module.exports = {
  async "both apps receive events of every kind"() {
    for (const { pubsub } of Object.values(clients)) {
      const key = randomUUID();
      assert.equal((await pubsub.publish(BROKER, "ships", key)).error, undefined);
      assert.equal((await pubsub.publish(BROKER, "ships", { key })).error, undefined);
      for (const app of APPS) {
        await taken(app, "ships", 1, (data) => data === key);
        await taken(app, "ships", 1, (data) => data.key === key);
      }
    }
  },
  async routes() {
    for (const [type, route] of [["boat", "/boats"], ["ship", "/others"]]) {
      const id = randomUUID();
      for (const { pubsub } of Object.values(clients)) {
        const envelope = { specversion: "1.0", id, source: "here", type, data: { id }, datacontenttype: "application/json" };
        await pubsub.publish(BROKER, "routed", envelope, { contentType: "application/cloudevents+json" });
      }
      for (const app of APPS) {
        const events = await taken(app, "routed", 2, (event) => event.data.id === id);
        assert.deepEqual(new Set(events.map((event) => event.route)), new Set([route]));
      }
    }
  },
  async "dead letters"() {
    await Object.values(clients)[0].pubsub.publish(BROKER, "ships", "poison");
    // Each app drops it, and receives what both have dropped.
    for (const app of APPS) await taken(app, "dead", 2, (data) => data === "poison");
  },
  async "events are redelivered on retry"() {
    await Object.values(clients)[0].pubsub.publish(BROKER, "tried", "once more");
    for (const app of APPS) assert.equal((await taken(app, "tried", 3)).length, 3);
  },
  async "bulks, published and subscribed"() {
    for (const { pubsub } of Object.values(clients)) {
      const key = randomUUID();
      const events = Array.from({ length: 100 }, (_, n) => `${key} ${n}`);
      assert.deepEqual((await pubsub.publishBulk(BROKER, "many", events)).failedMessages, []);
      for (const app of APPS) {
        const found = await taken(app, "many", 100, (data) => String(data).includes(key));
        assert.deepEqual([...found].sort(), [...events].sort());
      }
    }
  },
  async errors() {
    for (const { pubsub } of Object.values(clients)) {
      for (const [broker, topic] of [["nowhere", "a"], [BROKER, "secret"]]) {
        // Over HTTP the SDK returns the errors that it throws over gRPC.
        const { error } = await pubsub.publish(broker, topic, "x").catch((thrown) => thrown);
        assert.match(String(error), new RegExp(broker === BROKER ? "secret" : "nowhere"));
      }
    }
  },
};
