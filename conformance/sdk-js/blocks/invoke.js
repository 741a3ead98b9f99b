// Calls between apps of both kinds with clients of both kinds; the sidecar itself.
"use strict";

const assert = require("node:assert/strict");
const { HttpMethod } = require("@dapr/dapr");
const { APPS, GRPC, HTTP, clients, setting } = require("../world");

module.exports = {
  async "both kinds of apps"() {
    // The SDK's gRPC client calls only gRPC apps.
    for (const [protocol, apps] of [[HTTP, APPS], [GRPC, ["GRPC_APP"]]]) {
      for (const app of apps) {
        const answer = await clients[protocol].invoker.invoke(setting(app), "echo", HttpMethod.POST, { bell: 8 });
        assert.deepEqual(JSON.parse(answer.body), { bell: 8 }, `${protocol} to ${app}`);
      }
    }
  },
  async "an unknown app"() {
    await assert.rejects(clients[HTTP].invoker.invoke("nobody", "echo", HttpMethod.POST, {}), /ERR_DIRECT_INVOKE/);
    await assert.rejects(clients[GRPC].invoker.invoke("nobody", "echo", HttpMethod.POST, {}), /failed to invoke, id: nobody/);
  },
  async metadata() {
    for (const client of Object.values(clients)) {
      await client.metadata.set("anchor", "dropped");
      const metadata = await client.metadata.get();
      assert.equal(metadata.id, setting("CALLER"));
      assert.ok(await client.health.isHealthy());
    }
  },
};
