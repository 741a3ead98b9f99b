// The actor of the HTTP app. Callers use the class name too.
"use strict";

const { AbstractActor, Temporal } = require("@dapr/dapr");

const logs = new Map();
const BRIEFLY = Temporal.Duration.from({ milliseconds: 200 });

class Ship extends AbstractActor {
  /** Its log is kept by the process, for all ships. */
  note(entry) {
    const id = this.getActorId().getId();
    logs.set(id, [...(logs.get(id) ?? []), entry]);
  }

  async onActivate() {
    this.note("activated");
  }

  async log() {
    return logs.get(this.getActorId().getId()) ?? [];
  }

  /** Another turn between its two halves would be lost. */
  async load(tons) {
    const [, before] = await this.getStateManager().tryGetState("tons");
    await new Promise((resolve) => setTimeout(resolve, 10));
    const total = Number(before ?? 0) + tons;
    await this.getStateManager().setState("tons", total);
    return { total };
  }

  async sink() {
    throw new Error("the ship sinks");
  }

  async watch(on) {
    await (on
      ? this.registerActorTimer("watch", "tick", BRIEFLY, BRIEFLY, undefined, "bell")
      : this.unregisterActorTimer("watch"));
  }

  async tick(state) {
    this.note(`timer ${state}`);
  }

  async remind(on) {
    await (on
      ? this.registerActorReminder("tide", BRIEFLY, BRIEFLY, undefined, "high")
      : this.unregisterActorReminder("tide"));
  }

  async receiveReminder(state) {
    this.note(`reminder ${state}`);
  }
}

module.exports = { Ship };
