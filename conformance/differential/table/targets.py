"""Where an invocation can go, over HTTP and over gRPC."""

from differential.apps import GrpcReply, Reply
from differential.cases import Case, Grpc, Http
from differential.product import TOKEN

# The called sidecar, the path before the method, and additional headers.
HTTP = {
    "own": ("http", "/v1.0/invoke/@http@/method/", ()),
    "remote": ("bare", "/v1.0/invoke/@http@/method/", ()),
    "own gRPC app": ("grpc", "/v1.0/invoke/@grpc@/method/", ()),
    "remote gRPC app": ("bare", "/v1.0/invoke/@grpc@/method/", ()),
    "endpoint": ("bare", "/v1.0/invoke/endpoint/method/", ()),
    "URL": ("http", "/v1.0/invoke/http://@outside@/method/", ()),
    "own behind middleware": ("strict", "/v1.0/invoke/@strict@/method/", (("dapr-api-token", TOKEN),)),
    "remote behind middleware": ("bare", "/v1.0/invoke/@strict@/method/", ()),
}
GRPC = {
    "own": ("http", "@http@"),
    "remote": ("bare", "@http@"),
    "own gRPC app": ("grpc", "@grpc@"),
    "remote gRPC app": ("bare", "@grpc@"),
}
TO_HTTP_APPS = tuple(name for name in HTTP if "gRPC" not in name)
MAIN = ("own", "remote", "own gRPC app", "remote gRPC app", "endpoint")


def call(target, method="GET", path="a", headers=(), body=None, framing="length"):
    """A request over HTTP to one of the targets."""
    sidecar, prefix, needed = HTTP[target]
    return Http(sidecar, method, prefix + path, (*needed, *headers), body, framing)


def over_http(name, targets=tuple(HTTP), reply=Reply(), grpc_reply=GrpcReply(), **request):
    """The same request to several targets."""
    return [Case(f"invoke: {name}: to {target}", (call(target, **request),), reply, grpc_reply) for target in targets]


def service(target, method="a", body=b"", content_type="", verb="POST", query="", metadata=()):
    """A call of InvokeService."""
    sidecar, app_id = GRPC[target]
    message = {
        "id": app_id,
        "message": {
            "method": method,
            "contentType": content_type,
            "httpExtension": {"verb": verb, "querystring": query},
        },
    }
    return Grpc(sidecar, "InvokeService", (message,), metadata, body)


def over_service(name, targets=tuple(GRPC), reply=Reply(), grpc_reply=GrpcReply(), **request):
    return [
        Case(f"invoke: InvokeService: {name}: to {target}", (service(target, **request),), reply, grpc_reply)
        for target in targets
    ]


def proxied(name, path="/differential.Echo/Say", messages=(b"ahoy",), metadata=(), grpc_reply=GrpcReply()):
    """A call of any method, proxied to the gRPC app."""
    return [
        Case(
            f"invoke: proxied: {name}: to {target}",
            (Grpc(sidecar, path, messages, (("dapr-app-id", "@grpc@"), *metadata)),),
            grpc_reply=grpc_reply,
        )
        for target, sidecar in (("own", "grpc"), ("remote", "bare"))
    ]
