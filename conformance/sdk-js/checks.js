// Checks Dapr's JavaScript SDK against the fleet that drive.py started. usage: checks.js [BLOCK]...
// A block is a file in blocks/ with its checks by name. The last line is 'N passed, N failed'.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

async function main(names) {
  const folder = path.join(__dirname, "blocks");
  const all = fs.readdirSync(folder).map((file) => path.basename(file, ".js"));
  let passed = 0;
  let failed = 0;
  for (const name of names.length > 0 ? names : all.sort()) {
    for (const [what, check] of Object.entries(require(path.join(folder, name)))) {
      try {
        await check();
        passed += 1;
        console.log(`ok      ${name}: ${what}`);
      } catch (error) {
        failed += 1;
        console.log(`FAILED  ${name}: ${what}: ${error?.stack ?? String(error)}`);
      }
    }
  }
  console.log(`${passed} passed, ${failed} failed`);
  // Clients and workers leave connections open.
  process.exit(failed > 0 ? 1 : 0);
}

main(process.argv.slice(2));
