"""Stores filled by one sidecar and read by another, of two builds. Run by the script `crossread`."""

import json
import pathlib
import queue
import sys
import time

import fleet as fleets
import servers
from sdk.world import component

TIMEOUT = 20
VALUE = {"b": 1.5, "a": "<ahoy & \u00fc>", "n": [1, 20, -3], "deep": {"er": None}}
BYTES = bytes(range(256))
KEYS = {"old": "0123456789abcdef0123456789abcdef", "new": "fedcba9876543210fedcba9876543210"}


class Side:
    """A sidecar of one of the two builds."""

    def __init__(self, name, sidecar):
        from dapr.clients import DaprClient
        self.name, self.ask = name, sidecar.ask
        from dapr.conf import settings
        settings.DAPR_HTTP_PORT = sidecar.http
        self.sdk = DaprClient(address=f"127.0.0.1:{sidecar.grpc}")

    def get(self, store, key):
        return self.ask("GET", f"/v1.0/state/{store}/{key}")

    def save(self, store, key, value, **more):
        return self.ask("POST", f"/v1.0/state/{store}", [{"key": key, "value": value, **more}])[0]


def value(store):
    """The stored form of a value. With encryption Dapr stores the printed form of a value, not its JSON; for numbers they are
    equal."""
    return 42 if "encrypted" in store or "new-key" in store else VALUE


def same(got, expected, what=""):
    if got != expected:
        raise AssertionError(f"{what}: got {got!r}, expected {expected!r}")


# Checks of a state store: `w` writes, `r` reads. Keys start with the direction, `d`.

def values(w, r, write, read, d):
    same(w.save(write, f"{d}-v", value(write)), 204, "save")
    status, headers, found = r.get(read, f"{d}-v")
    same((status, found), (200, value(write)), "get")
    same(headers["etag"], w.get(write, f"{d}-v")[1]["etag"], "the ETag")
    _, _, found = r.ask("POST", f"/v1.0/state/{read}/bulk", {"keys": [f"{d}-v", f"{d}-none"]})
    same({item["key"]: item.get("data") for item in found}, {f"{d}-v": value(write), f"{d}-none": None}, "bulk get")


def raw_bytes(w, r, write, read, d):
    w.sdk.save_state(write, f"{d}-b", BYTES)
    same(r.sdk.get_state(read, f"{d}-b").data, BYTES, "get")


def etags(w, r, write, read, d):
    same(w.save(write, f"{d}-e", 1), 204, "save")
    etag = r.get(read, f"{d}-e")[1]["etag"]
    same(r.save(read, f"{d}-e", 2, etag=etag), 204, "save over the other's version")
    same(w.get(write, f"{d}-e")[2], 2, "get")
    same(w.save(write, f"{d}-e", 3, etag=etag), 409, "save over a version that is gone")
    same(w.ask("DELETE", f"/v1.0/state/{write}/{d}-e", headers={"if-match": etag})[0], 409, "delete of it")
    etag = w.get(write, f"{d}-e")[1]["etag"]
    same(r.ask("DELETE", f"/v1.0/state/{read}/{d}-e", headers={"if-match": etag})[0], 204, "delete")
    same(w.get(write, f"{d}-e")[0], 204, "get of what the other deleted")


def transactions(w, r, write, read, d):
    same(w.save(write, f"{d}-t1", 1), 204, "save")
    steps = [{"operation": "upsert", "request": {"key": f"{d}-t2", "value": value(write)}},
             {"operation": "delete", "request": {"key": f"{d}-t1"}}]
    same(w.ask("POST", f"/v1.0/state/{write}/transaction", {"operations": steps})[0], 204, "transaction")
    same(r.get(read, f"{d}-t1")[0], 204, "get of what was deleted")
    same(r.get(read, f"{d}-t2")[2], value(write), "get of what was written")


def expiry(w, r, write, read, d):
    same(w.save(write, f"{d}-short", 1, metadata={"ttlInSeconds": "1"}), 204, "save")
    same(w.save(write, f"{d}-long", 2, metadata={"ttlInSeconds": "600"}), 204, "save")
    mine, theirs = w.get(write, f"{d}-long"), r.get(read, f"{d}-long")
    same(theirs[2], 2, "get")
    same(theirs[1]["metadata.ttlexpiretime"], mine[1]["metadata.ttlexpiretime"], "when it expires")
    time.sleep(2.1)
    same(r.get(read, f"{d}-short")[0], 204, "get of what expired")
    same(r.save(read, f"{d}-long", 3), 204, "save without expiry")
    same(w.get(write, f"{d}-long")[1]["metadata.ttlexpiretime"], None, "no longer expires")


def queries(w, r, write, read, d):
    for number, city in enumerate(("Oslo", "Rome", "Oslo")):
        same(w.save(write, f"{d}-q{number}", {"of": d, "city": city, "number": number}), 204, "save")
    query = {"filter": {"AND": [{"EQ": {"of": d}}, {"IN": {"city": ["Oslo", "Bonn"]}}]},
             "sort": [{"key": "number", "order": "DESC"}], "page": {"limit": 1}}
    for key in (f"{d}-q2", f"{d}-q0"):
        answers = [side.ask("POST", f"/v1.0-alpha1/state/{read}/query", query) for side in (r, w)]
        same(answers[0][2], answers[1][2], "the page")
        same([item["key"] for item in answers[0][2]["results"]], [key], "the page")
        query["page"]["token"] = answers[0][2]["token"]
    query["filter"]["AND"][1] = {"NEQ": {"city": "Oslo"}}
    del query["page"]
    answers = [side.ask("POST", f"/v1.0-alpha1/state/{read}/query", query)[2] for side in (r, w)]
    same(answers[0], answers[1], "what is not in Oslo")


def locks(w, r, write, read, d):
    def lock(side, store, owner, seconds=60):
        body = {"resourceId": f"{d}-r", "lockOwner": owner, "expiryInSeconds": seconds}
        return side.ask("POST", f"/v1.0-alpha1/lock/{store}", body)[2]["success"]

    def unlock(side, store, owner):
        body = {"resourceId": f"{d}-r", "lockOwner": owner}
        return side.ask("POST", f"/v1.0-alpha1/unlock/{store}", body)[2]["status"]

    same(lock(w, write, "ann"), True, "lock")
    same(lock(r, read, "bob"), False, "lock of what the other holds")
    same(unlock(r, read, "bob"), 2, "unlock by another owner")
    same(unlock(r, read, "ann"), 0, "unlock by the owner elsewhere")
    same(unlock(w, write, "ann"), 1, "unlock of what is free")
    same(lock(w, write, "ann", 1), True, "lock for a second")
    time.sleep(1.5)
    same(lock(r, read, "bob"), True, "lock of what expired")
    same(unlock(r, read, "bob"), 0, "unlock")


class Configurations:
    """Configuration stores, written by other programs."""

    def __init__(self, redis, postgres):
        self.redis, self.postgres = redis, postgres

    def write(self, store, key, value, version):
        if store == "redis-configuration":
            self.redis.command("SET", key, f"{value}||{version}", database=5)
        else:
            self.postgres.sql(
                f"INSERT INTO settings VALUES ('{key}', '{value}', '{version}', '{{\"a\": \"b\"}}') "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version")

    def check(self, w, r, store, _, d):
        for number in range(3):
            self.write(store, f"{d}.c{number}", f"v{number}", number)
        path = f"/v1.0/configuration/{store}?" + "&".join(f"key={d}.c{number}" for number in range(4))
        answers = [side.ask("GET", path)[2] for side in (r, w)]
        same(answers[0], answers[1], "get")
        same(answers[0][f"{d}.c1"]["value"], "v1", "get")
        changes = queue.Queue()
        metadata = {"pgNotifyChannel": "settings"}
        ids = {side: side.sdk.subscribe_configuration(
            store, [f"{d}.c0"], lambda id, change, side=side: changes.put((side, change.items)), metadata)
            for side in (r, w)}
        time.sleep(0.5)
        self.write(store, f"{d}.c0", "changed", 9)
        seen = {}
        while len(seen) < 2:
            side, items = changes.get(timeout=TIMEOUT)
            told = [(key, item.value, item.version, dict(item.metadata)) for key, item in items.items()]
            # Dapr may still report changes from before the new subscription.
            if told[0][1] == "changed":
                seen[side] = told
        same(seen[r], seen[w], "the change")
        for side, id in ids.items():
            same(bool(side.sdk.unsubscribe_configuration(store, id)), True, "unsubscribe")


TABLE = """
CREATE TABLE settings (key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL, version VARCHAR NOT NULL, metadata JSON);
CREATE FUNCTION tell() RETURNS trigger AS $$ BEGIN
  PERFORM pg_notify('settings', json_build_object('table', TG_TABLE_NAME, 'action', TG_OP, 'data', row_to_json(NEW))::text);
  RETURN NEW; END; $$ LANGUAGE plpgsql;
CREATE TRIGGER settings AFTER INSERT OR UPDATE ON settings FOR EACH ROW EXECUTE PROCEDURE tell();
"""


def stores(folder, redis, postgres, turn):
    """The components as YAML, and the checks: (name, check, store to write, store to read)."""
    state = (values, raw_bytes, etags, transactions, expiry)
    documents, plan = [], []

    def add(name, kind, checks, version="v1", encrypt=(), read=None, **properties):
        text = component(name, kind, **properties).replace("version: v1", f"version: {version}")
        for item, key in zip(("primaryEncryptionKey", "secondaryEncryptionKey"), encrypt):
            text += f"  - name: {item}\n    secretKeyRef: {{ name: {key}, key: {key} }}\n"
        if encrypt:
            text += "auth: { secretStore: vault }\n"
        documents.append(text)
        plan.extend((f"{read or name}: {check.__name__.strip('_')}", check, name, read or name) for check in checks)

    vault = folder / "keys.json"
    vault.write_text(json.dumps(KEYS))
    documents.append(component("vault", "secretstores.local.file", secretsFile=vault))
    file = folder / f"{turn}.db"
    add("sqlite", "state.sqlite", state, connectionString=file)
    for prefix in ("name", "namespace", "none", "Fleet"):
        add(f"sqlite-{prefix.lower()}", "state.sqlite", (values,), connectionString=file, keyPrefix=prefix,
            tableName=f"state_{prefix}", metadataTableName=f"metadata_{prefix}")
    secret = dict(connectionString=file, tableName="secret", metadataTableName="secret_metadata")
    add("sqlite-encrypted", "state.sqlite", state, encrypt=("old",), **secret)
    # The same table after a key rotation: values of the old key are readable, new ones use the new key.
    add("sqlite-new-key", "state.sqlite", (values, transactions), encrypt=("new", "old"), **secret)
    plan.append(("sqlite: values under the key before", values, "sqlite-encrypted", "sqlite-new-key"))
    number = 0 if turn == "ours" else 1
    add("redis", "state.redis", state, redisHost=redis.address, redisDB=number)
    add("redis-encrypted", "state.redis", (values, etags, expiry), encrypt=("old",), redisHost=redis.address,
        redisDB=number + 2)
    add("postgres-1", "state.postgresql", (*state, queries), connectionString=postgres.text,
        tableName=f"state_{turn}", metadataTableName=f"metadata_{turn}")
    add("postgres-1-encrypted", "state.postgresql", (values, etags), encrypt=("old",),
        connectionString=postgres.text, tableName=f"secret_{turn}", metadataTableName=f"secret_metadata_{turn}")
    add("postgres-2", "state.postgresql", state, version="v2", connectionString=postgres.text,
        tablePrefix=f"{turn}_", metadataTableName=f"metadata_2_{turn}")
    configurations = Configurations(redis, postgres)
    add("redis-configuration", "configuration.redis", (), redisHost=redis.address, redisDB=5)
    add("postgres-configuration", "configuration.postgresql", (), connectionString=postgres.text, table="settings")
    for name in ("redis-configuration", "postgres-configuration"):
        plan.append((f"{name}: values and changes", configurations.check, name, name))
    add("lock", "lock.redis", (locks,), redisHost=redis.address, redisDB=6)
    add("lock-name", "lock.redis", (locks,), redisHost=redis.address, redisDB=6, keyPrefix="name")
    add("lock-none", "lock.redis", (locks,), redisHost=redis.address, redisDB=6, keyPrefix="none")
    return documents, plan


def turn(fleet, binaries, first, redis, postgres):
    """Runs both sidecars on the same fresh stores; `first` creates the tables. Returns the numbers of passed and failed checks."""
    folder = fleet.dir / f"turn-{first}"
    folder.mkdir()
    documents, plan = stores(folder, redis, postgres, first)
    (folder / "resources").mkdir()
    (folder / "resources" / "all.yaml").write_text("---\n".join(documents))
    flags = [f"--resources-path={folder / 'resources'}"]
    order = [first, "theirs" if first == "ours" else "ours"]
    env = {"NAMESPACE": "crossread"}
    sides = {name: Side(name, fleet.sidecar(f"{name}-{first}-first", app_id=f"app-{first}", binaries=binaries[name],
                                            flags=flags, env=env)) for name in order}
    passed = failed = 0
    for w, r in ((sides["theirs"], sides["ours"]), (sides["ours"], sides["theirs"])):
        for name, check, write, read in plan:
            label = f"tables by {first}, written by {w.name}, {name}"
            try:
                check(w, r, write, read, w.name)
            except Exception as error:  # the other checks continue
                failed += 1
                print(f"FAILED  {label}: {type(error).__name__} {error}", flush=True)
            else:
                passed += 1
                print(f"ok      {label}", flush=True)
    for name in order:
        sides[name].sdk.close()
        fleet.end(f"daprd-{name}-{first}-first")
    return passed, failed


def main(ours, theirs):
    binaries = {"ours": pathlib.Path(ours).resolve(), "theirs": pathlib.Path(theirs).resolve()}
    passed = failed = 0
    with fleets.Fleet(ours, sentry=False) as fleet:
        try:
            redis, postgres = servers.Redis(fleet), servers.Postgres(fleet)
        except servers.Missing as missing:
            sys.exit(f"conformance/crossread: {missing}")
        postgres.sql(TABLE)
        for first in ("theirs", "ours"):
            done = turn(fleet, binaries, first, redis, postgres)
            passed, failed = passed + done[0], failed + done[1]
        if failed:
            fleet.keep_logs()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
