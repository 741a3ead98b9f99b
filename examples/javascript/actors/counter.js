// The actor type `Counter`, whose count is in the state store.
"use strict";

const { AbstractActor } = require("@dapr/dapr");

class Counter extends AbstractActor {
  /** Calls to one actor run one at a time, so no increment is lost. */
  async increment(by) {
    const [found, count] = await this.getStateManager().tryGetState("count");
    const next = (found ? count : 0) + by;
    await this.getStateManager().setState("count", next);
    console.log(`${this.getActorId().getId()} is incremented to ${next}`);
    return next;
  }
}

module.exports = { Counter };
