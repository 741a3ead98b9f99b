"""Tokens that sentry issues with certificates: their keys in the cluster, OIDC, and sidecars with tokens."""

import base64
import json
import urllib.error
import urllib.request

from world import SECRET, SYSTEM, adder, holds, same, wait

CHECKS = []
check = adder(CHECKS)
ISSUER = "tokens.example.com"
VALUES = {"dapr_sentry": {"jwt": {"enabled": True, "issuer": f"https://{ISSUER}"},
                          "oidc": {"enabled": True, "allowedHosts": [ISSUER], "tls": {"enabled": False}}}}
# Lifetime of tokens, for which the chart has no value; the default is a day.
SHORT = "--jwt-ttl=20s"
CERTIFICATES = {"ca.crt", "issuer.crt", "issuer.key", "ca-rotation.json"}
RENEWED = "renewed the workload identity"


def public(world):
    return world.api.get(SECRET.replace("/secrets/", "/configmaps/"))["data"]


def fetch(world, path, host=ISSUER):
    """The OIDC response through sentry's service: status and JSON."""
    address = world.api.get(f"/api/v1/namespaces/{SYSTEM}/services/dapr-sentry")["spec"]["clusterIP"]
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}:9080{path}", headers={"host": host}),
                                    timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None


@check("enabling tokens keeps the CA: the private key is only in the secret, the key set also in the config map")
def kept(world):
    before = world.api.get(SECRET)["data"]
    world.again("sentry", world.objects(VALUES, "dapr-sentry"), [SHORT])
    data = world.api.get(SECRET)["data"]
    same(set(data), CERTIFICATES | {"jwt.key", "jwks.json"}, "keys of the secret")
    same({name: data[name] for name in before}, before, "what was there")
    same(set(public(world)), {"ca.crt", "jwks.json"}, "keys of the config map")
    same(public(world)["jwks.json"], base64.b64decode(data["jwks.json"]).decode(), "the key set")
    key, = json.loads(public(world)["jwks.json"])["keys"]
    same((key["kty"], key["alg"], key["use"], set(key) & {"d", "p", "q", "dp", "dq", "qi"}), ("RSA", "RS256", "sig", set()),
         "its only key")


@check("OIDC discovery leads to the key set through sentry's service, with the host names that the chart allows")
def discovered(world):
    status, told = fetch(world, "/.well-known/openid-configuration")
    same(status, 200, "status")
    same((told["issuer"], told["jwks_uri"]), (f"https://{ISSUER}", f"https://{ISSUER}/jwks.json"), "whose keys, and where")
    same(fetch(world, "/jwks.json"), (200, json.loads(public(world)["jwks.json"])), "the key set")
    same(fetch(world, "/jwks.json", "elsewhere.example.com")[0], 403, "another name")


@check("a sidecar gets a token with its certificate, and renews both before the token expires")
def renewed(world):
    # The certificate is valid for hours.
    world.deploy("bearer", app=False, config="appconfig", sentry_request_jwt_audiences="shop")
    wait("it renews", lambda: world.said("daprd-bearer", RENEWED) >= 2, 40)
    holds(not world.logged("daprd-bearer", "error renewing"), "one failed")


@check("disabling tokens keeps the CA, and sidecars continue with certificates only")
def given_up(world):
    before = world.anchors()
    world.again("sentry", [one for one in world.default if one["metadata"]["name"] == "dapr-sentry"])
    same(world.anchors(), before, "the root certificate")
    since = world.said("daprd-bearer", RENEWED)
    wait("the token is dropped", lambda: world.said("daprd-bearer", RENEWED) > since)
    holds(world.fleet.processes["daprd-bearer"].poll() is None, "the sidecar has ended")
    world.dismiss("bearer")
