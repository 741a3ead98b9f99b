"""The differences that are on purpose. Each names its row of docs/reference/differences by its key."""

from differential import alike
from differential.compare import Allowed

NOTHING = r"\(absent\)"
APPS = r"(app|outside|grpc-app|hub-app|grpc-hub-app) \d+"
TO_APP = r"(app|outside|hub-app) \d+"
HUB = r"(grpc-)?hub-app \d+"
ANSWER = r"answer \d+"
# Texts of Go and its libraries, for which ours has others; the prefix is Dapr's and must be equal.
GO = (
    r"json: |invalid character|unexpected end of JSON|strconv\.|net/url|invalid URL escape|dial tcp|desc = |transport: |"
    r"EOF|proto:|cannot unmarshal|http: |cardinality|no such file|error parsing|redis: |malformed HTTP|"
    r"stream too large|invalid byte|expected a map|invalid TTL|pq: |etag|file "
)
HOP_BY_HOP = (
    r"connection|keep-alive|proxy-connection|transfer-encoding|upgrade|http2-settings|te|trailer|proxy-authorization|"
    r"proxy-authenticate|x-hop"
)
# Methods that are not URL paths for Dapr, and methods that cannot be paths.
BEYOND = "invoke: body: beyond the limit, chunked: to own behind middleware"
CALLED = "actors: call .*"
FORGED = "invoke: .*a forged caller: .*|actors: call (a forged caller|with headers: .*dapr-caller-app-id).*"
NO_PATHS = r"(path with (an encoded per cent|raw JSON in the path)|method '(a%zz|\{.*\})')"
REFUSED = r"(path with (a control character|NUL|an encoded (question mark|hash))|method '(a\?b=c|a#b|a\\x01)')"
# Requests that every server refuses, and the texts of Go's server.
NOT_HTTP = (
    r"invoke: written: (a header without a colon|a space in the target|no target|two lengths|a name with a space|"
    r"a space before the colon|no host|two hosts|another transfer coding).*|invoke: path with (a bad|half an) escape.*|"
    r"invoke: headers: 60 KB.*|state: .*: key 'a%zz'"
)

ALLOWED = (
    # Traces.
    Allowed(
        "trace",
        rf"({ANSWER}|{APPS}): \w+\.(traceparent|grpc-trace-bin)",
        rf"00-(fresh|given)-fresh-0[01]|{NOTHING}",
        rf"00-zero-zero-00|{NOTHING}",
    ),
    Allowed("trace", rf"{APPS}: \w+\.(traceparent|grpc-trace-bin)", "00-fresh-fresh-00", "00-fresh-fresh-01"),
    Allowed(
        "grpc-span",
        r"grpc-app \d+: metadata\.(traceparent|grpc-trace-bin)",
        r"00-(fresh|given)-fresh-0[01]",
        rf"00-given-given-0[01]|{NOTHING}",
    ),
    Allowed("trace", rf"{APPS}: \w+\.traceparent", "00-fresh-fresh-0[01]", ".*xyz.*"),
    Allowed(
        "trace",
        rf"{ANSWER}: (trailer|header)\.traceparent",
        rf"{NOTHING}|00-fresh-fresh-00",
        "00-.*-01",
        "invoke: InvokeService: .*",
    ),
    Allowed("tracestate", rf"({APPS}|{ANSWER}): \w+\.tracestate", "a=1,b=2", r"a=1( \| b=2)?", ".*two states.*"),
    Allowed(
        "tracestate",
        rf"({APPS}|{ANSWER}): \w+\.tracestate",
        "a=1(,b=2)?",
        NOTHING,
        "invoke: InvokeService: metadata (a trace|two states).*",
    ),
    Allowed("tracestate", r"grpc-app \d+: metadata\.tracestate", NOTHING, "a=1", ".*a state without a trace.*"),
    Allowed(
        "tracestate",
        rf"{ANSWER}: header\.tracestate",
        NOTHING,
        "x=1",
        r"invoke: InvokeService: answer \d+: headers a trace.*",
    ),
    # Additions of the libraries of the two.
    Allowed("user-agent", rf"{APPS}: \w+\.user-agent", None, rf"Go-http-client/1\.1|grpc-go/.*|{NOTHING}"),
    Allowed("user-agent", rf"{TO_APP}: header\.accept-encoding", NOTHING, "gzip"),
    Allowed(
        "transport-metadata",
        rf"({ANSWER}|{TO_APP}): header\.dapr-(grpc-accept-encoding|authority|grpc-encoding)",
        NOTHING,
    ),
    Allowed("reason", rf"{ANSWER}: reason"),
    Allowed("reason", rf"{ANSWER}: header\.metadata\.status"),
    Allowed(
        "error-texts",
        rf"{ANSWER}: (body|message|details)",
        r'(?!HTTP).*(errorCode|failed|error|rpc|code"|Bad Request).*',
        rf".*({GO}).*",
        alike=alike.error,
    ),
    Allowed(
        "server-errors",
        rf"{ANSWER}: body",
        r"(400 Bad Request: |501 Not Implemented: |invalid URL escape |failed to unescape request parameter ).*|",
        r"400 Bad Request(: .*)?|431 Request Header Fields Too Large|Unsupported transfer encoding",
        NOT_HTTP,
    ),
    Allowed("server-errors", ANSWER, "400 .*cannot be sent: .*", "500 .*invalid byte in chunk length.*", "invoke: written: a bad chunk: .*"),
    Allowed("server-errors", rf"{ANSWER}: framing", "length", "close", NOT_HTTP),
    Allowed("server-errors", rf"{ANSWER}: header\.connection", NOTHING, "close", NOT_HTTP),
    Allowed("server-errors", rf"{ANSWER}: header\.content-type", NOTHING, "text/plain(; charset=utf-8)?", NOT_HTTP),
    Allowed("server-errors", rf"{ANSWER}: header\.date", "DATE", NOTHING, NOT_HTTP),
    Allowed("server-errors", rf"{ANSWER}: header\.x-content-type-options", "nosniff", NOTHING, NOT_HTTP),
    Allowed(
        "server-errors", rf"{ANSWER}: header\.vary", "Origin", NOTHING, r"invoke: path with (a bad|half an) escape.*"
    ),
    Allowed(
        "two-readings",
        ANSWER,
        "400 .*|500 .*the body of the request cannot be sent: .*",
        "200 ahoy|no answer in .*",
        r"invoke: written: (a folded header|a last chunk with a bare line feed): .*",
    ),
    Allowed(
        "two-readings",
        r"app \d+",
        NOTHING,
        r"(GET|POST) /a .*",
        r"invoke: written: a folded header: .*",
    ),
    Allowed("first-line", ANSWER, "200 ahoy", "400 .*", "invoke: written: an empty line before: .*"),
    Allowed("first-line", r"app \d+", "GET /a .*", NOTHING, "invoke: written: an empty line before: .*"),
    Allowed("first-line", ANSWER, "400 .*", "505 .*", "invoke: written: HTTP/2.5: .*"),
    Allowed(
        "error-texts",
        rf"{ANSWER}: (body|message)",
        r".*couldn't find service: \S+",
        r".*timeout waiting for address for app id \S+",
        alike=alike.error,
    ),
    Allowed(
        "error-texts",
        rf"{ANSWER}: message",
        "failed to proxy request: required metadata .* not found",
        "cannot proxy request: missing .* metadata|app id is empty",
        "invoke: proxied: (no|an empty) id",
    ),
    Allowed(
        "error-texts",
        rf"{ANSWER}: message",
        ".*the app does not speak gRPC.*",
        ".*error reading server preface.*",
        "invoke: proxied: an HTTP app",
    ),
    Allowed(
        "error-texts",
        rf"{ANSWER}: body",
        ".*app channel is not initialized.*",
        ".*app channel not initialized.*",
        "invoke: target: no app at all",
        alike.error,
    ),
    Allowed(
        "error-texts",
        rf"{ANSWER}: message",
        "app channel is not initialized",
        "connection error: .*dial tcp.*",
        "invoke: proxied: no app",
    ),
    Allowed(
        "json-typed",
        ANSWER,
        "INTERNAL failed saving state in state store .*: the value is not valid JSON: .*",
        "UNKNOWN (invalid character|unexpected end of JSON input).*",
        "state: .*: gRPC value .* with a type",
    ),
    Allowed(
        "proxied-endpoint",
        ANSWER,
        "UNKNOWN couldn't find service: endpoint ",
        "UNAVAILABLE .*dial tcp.*",
        "invoke: proxied: an endpoint",
    ),
    Allowed("status-details", rf"{ANSWER}: details", None, NOTHING, "invoke: InvokeService: (gRPC answer|random) .*"),
    Allowed(
        "status-details",
        rf"{ANSWER}: details",
        ".*(DAPR_STATE_ILLEGAL_KEY|DAPR_STATE_QUERYING).*",
        ".*(BadRequest|ResourceInfo).*",
        "state: .*",
        alike.status,
    ),
    Allowed(
        "status-details",
        rf"{ANSWER}: body",
        r".*\"field\":\"a\|\|b\".*",
        ".*DAPR_STATE_ILLEGAL_KEY.*",
        "state: .*: transaction of a bad key",
        lambda text: alike.error(text.replace(',\"field\":\"a||b\"', "")),
    ),
    # Body framing.
    Allowed("answer-length", rf"{ANSWER}: framing", "length|chunked", "length|chunked|close"),
    Allowed("answer-length", rf"{ANSWER}: header\.(dapr-)?content-length", r"\d+", NOTHING, "invoke: .*"),
    Allowed(
        "head-length",
        rf"{ANSWER}: header\.content-length",
        rf"{NOTHING}|\d+",
        "0",
        r"invoke: (status \d+ (in chunks )?to HEAD: .*|random .*)",
    ),
    Allowed(
        "request-length",
        rf"{TO_APP}: (header\.(content-length|transfer-encoding)|framing)",
        rf"none|length|\d+|{NOTHING}",
        rf"chunked|{NOTHING}",
    ),
    Allowed("accept", r"outside \d+: header\.accept", r"\*/\*", NOTHING, "invoke: .*"),
    Allowed(
        "no-sniffing",
        rf"{ANSWER}: header\.content-type",
        NOTHING,
        r"text/(plain|html); charset=utf-8|application/(json|octet-stream)",
    ),
    Allowed("gzip", rf"{ANSWER}: header\.content-encoding", "gzip", NOTHING, r"invoke: .*answer: body gzip.*"),
    Allowed(
        "gzip", rf"{ANSWER}: body", "\x1f\x8b.*|data .*", ".*(ahoy){100}.*", r"invoke: .*answer: body gzip( to a POST)?: .*"
    ),
    Allowed("gzip", rf"{ANSWER}: body", "ahoy", "", r"invoke: answer: body gzip that is none.*"),
    Allowed("broken-answer", rf"{ANSWER}(: .*)?", None, None, r"invoke: .*(break off|shorter than its length).*"),
    Allowed(
        "event-stream",
        rf"{ANSWER}: (header\.(cache-control|content-type)|framing)",
        None,
        None,
        r"invoke: .*(text/event-stream asked|event stream: to \w+ gRPC app|status (204|304)).*",
    ),
    Allowed(
        "event-stream",
        ANSWER,
        "200.*|204|304|OK .*",
        "200 .*|(500|INTERNAL) .*(EOF|no response).*",
        "invoke: .*event.stream.*",
    ),
    Allowed("connect", rf"{ANSWER}: (framing|body)", "close|", "length|chunked|ahoy", "invoke: method CONNECT.*"),
    Allowed("cut-body", ANSWER, "500 .*stream too large.*", "200 ahoy", BEYOND),
    Allowed("cut-body", r"app \d+", NOTHING, "POST /a HTTP/1.1 x{65536}", BEYOND),
    Allowed(
        "latin-1-of-bindings",
        rf"{ANSWER}: header\.metadata\.x-latin",
        "caf\xc3\xa9",
        "caf\xe9",
        "binding answers: headers Latin-1",
    ),
    Allowed("switching", ANSWER, "502 .*", "101.*", "invoke: .*with 101.*"),
    # Methods, targets.
    Allowed("methods", rf"{ANSWER}|{APPS}", "501 .*|\\(absent\\)", None, "invoke: .*(PROPFIND|BREW|M-SEARCH).*"),
    Allowed("methods", ANSWER, "204|200 1", "(404|500|204).*", "state: .*: lower case"),
    Allowed("error-texts", rf"{ANSWER}: message", "malformed method name .*", "invalid method: .*", "invoke: proxied: method .*"),
    Allowed("first-line", ANSWER, "404 .*", "200 ", "invoke: written: an asterisk: .*"),
    Allowed(
        "proxied-path",
        rf"{ANSWER}|{APPS}",
        rf"(INVALID_ARGUMENT|UNIMPLEMENTED) .*|{NOTHING}",
        None,
        "invoke: proxied: method .*",
    ),
    Allowed(
        "callbacks", ANSWER, "PERMISSION_DENIED .*callback.*", "UNAVAILABLE .*", "invoke: proxied: a callback beside rules"
    ),
    Allowed("not-utf8", rf"{ANSWER}|{APPS}", None, None, "invoke: path with other bytes.*|state: .*: key '%ff.*"),
    Allowed(
        "query-escapes",
        rf"{APPS}(: messages)?",
        r".*(\?|querystring: ).*%(2[27]|3[CE]|C3).*",
        None,
        "invoke: .*(raw JSON|a raw query|raw angles|raw UTF-8|random).*",
        alike.unescaped,
    ),
    Allowed(
        "redirects", rf"{ANSWER}|outside \d+", None, None, r"invoke: status 30[1237] with a place.*: to endpoint"
    ),
    Allowed("odd-spellings", rf"{ANSWER}|{APPS}", None, None, "invoke: access control: .*denied;x.*"),
    Allowed(
        "other-namespace",
        rf"{ANSWER}|app \d+",
        rf"500 .*|{NOTHING}",
        "200 .*|GET .*",
        "invoke: target: another namespace",
    ),
    # Fields.
    Allowed("proxied-headers", rf"{ANSWER}: header\..*", None, NOTHING, "invoke: proxied: random .*"),
    Allowed(
        "forwarding",
        rf"{APPS}: \w+\.(forwarded|x-forwarded-.*)",
        None,
        None,
        "invoke: InvokeService: .*(forwarding|event stream).*",
    ),
    Allowed("binary-headers", rf"({ANSWER}|{APPS}): \w+\.x-data-bin", None, "AQI.*|!!"),
    Allowed("app-token", r"outside \d+: header\.dapr-api-token", NOTHING, "of-the-app"),
    Allowed("field-count", rf"{ANSWER}|{APPS}", rf"431.*|{NOTHING}", None, "invoke: headers.*: 200 of them.*"),
    Allowed("cors-names", rf"{ANSWER}: header\.(access-control-allow-headers|vary)", alike=alike.names),
    Allowed("internal-fields", rf"{APPS}: \w+\.(destination-app-id|dapr-app-id)", NOTHING, "x|"),
    Allowed("hop-by-hop", rf"({ANSWER}|{APPS}): \w+\.(dapr-)?({HOP_BY_HOP})", NOTHING, None),
    Allowed("http2-fields", ANSWER, r"INTERNAL Stream removed.*", None, r"invoke: .*: metadata hop-by-hop.*"),
    Allowed("http2-fields", r"(app|grpc-app) \d+", NOTHING, None, r"invoke: .*: metadata hop-by-hop.*"),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-caller-app-id", NOTHING, "admin|forged", FORGED),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-caller-namespace", NOTHING, "kube", FORGED),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-callee-app-id", NOTHING, "x|ID-OF-GRPC", FORGED),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-caller-app-id", "ID-OF-BARE", r"admin \| \S+|\S+ \| admin", FORGED),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-caller-namespace", "default", r"kube \| \S+|\S+ \| kube", FORGED),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-callee-app-id", r"ID-OF-\w+", r"x \| \S+|\S+ \| x", FORGED),
    # Dapr names the host's own app as the caller of an actor, and may add what the caller said.
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-caller-app-id", rf"ID-OF-\S+|{NOTHING}", ".*ID-OF-HUB.*", "actors: .*"),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-caller-namespace", rf"default|{NOTHING}", r"(.* \| )?default( \| .*)?", "actors: .*"),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-callee-app-id", r"ID-OF-\S+", f"{NOTHING}|x", CALLED),
    Allowed(
        "forged-caller",
        r"grpc-app \d+: metadata\.dapr-callee-app-id",
        "ID-OF-GRPC",
        r"ID-OF-GRPC \| ID-OF-GRPC",
        "invoke: proxied: the callee's id",
    ),
    Allowed(
        "forged-caller",
        r"grpc-app \d+: metadata\.dapr-caller-namespace",
        "default",
        NOTHING,
        "(invoke: |gRPC: token, )proxied: .*",
    ),
    Allowed("api-token", rf"{APPS}: \w+\.dapr-api-token", NOTHING, "of-the-api"),
    Allowed(
        "header-values",
        ANSWER,
        "200 .*|404 .*|OK .*|NOT_FOUND .*",
        r"(500|INTERNAL) .*(non-printable ASCII|invalid UTF-8|after \d retries|server response headers).*",
    ),
    Allowed("header-values", ANSWER, "OK .*|NOT_FOUND .*", "INTERNAL .*", "invoke: .*60 KB.*"),
    Allowed("header-values", APPS, ".* HTTP/1.1 .*|/dapr.*", NOTHING, r"invoke: .*(Latin-1|UTF-8|tabs|60 KB).*"),
    # Paths that have no canonical form for Dapr, and those that no target gets.
    Allowed("canonical-path", APPS, None, NOTHING, rf"invoke: .*{NO_PATHS}.*"),
    Allowed(
        "canonical-path",
        ANSWER,
        "(200|OK) .*",
        "(403|500|INTERNAL) .*(method normalization|invalid URL escape).*",
        rf"invoke: .*{NO_PATHS}.*",
    ),
    Allowed(
        "canonical-path",
        ANSWER,
        "(400|500|INTERNAL) .*invalid method: method contains (forbidden|control) character.*",
        "(200|OK) .*|403 .*method normalization.*|500 .*desc = invalid method: .*",
        rf"invoke: (.*{REFUSED}|written: a fragment).*",
    ),
    Allowed(
        "literal-per-cent",
        r"app \d+",
        r"POST /a%25\S+ .*",
        r"POST /a%2F\S+ .*",
        r"invoke: InvokeService: method 'a%2Fb'.*",
    ),
    # State and bindings.
    Allowed("redis-json", rf"{ANSWER}: body", case="state: redis: value .*|random .*", alike=alike.value),
    Allowed(
        "redis-json",
        rf"{ANSWER}: (body|message|details)",
        r".*state store does not support querying.*",
        ".*redis-json server support is required.*",
        "state: redis: .*query",
    ),
    Allowed("bulk-order", rf"{ANSWER}: body", case="(random|state: .*: bulk) .*", alike=alike.items),
    Allowed("binding-path", rf"{ANSWER}|outside \d+", None, None, "bindings: .*path beyond.*"),
    Allowed("empty-value", ANSWER, "200 ", "204", "state: memory: gRPC value nothing"),
    Allowed("first-write", ANSWER, "409 .*", "500 .*", "state: redis: first write.*"),
    Allowed(
        "first-write-after",
        rf"{ANSWER}(: .*)?",
        None,
        None,
        "state: redis: (first write (over a plain one|in a transaction)|gRPC first write)",
    ),
    Allowed(
        "etag-of-nothing",
        ANSWER,
        "409 .*|204|200 1",
        "204|200 1",
        "state: redis: (delete of version .*|version ('0' of something|.* of nothing))",
    ),
    Allowed("etag-of-nothing", rf"{ANSWER}: (header\.etag|body)", "1", "2", "state: redis: version '0' of something"),
    Allowed("step-key", ANSWER, r'400 .*"key\\" is a required field.*', "204", r"state: .*: transaction of no (key|request)|random \d+"),
    Allowed("bulk-json", rf"{ANSWER}: body", ".*the stored value is not JSON.*", "", "random .*"),
    Allowed("empty-value", ANSWER, "200 ", "204", "random .*"),
    Allowed("json-spelling", rf"{ANSWER}: header.content-length", r"\d+", r"\d+", "invoke: random .*"),
    Allowed("repeats", r"app \d+", "GET /a .*", NOTHING, "invoke: an app that hangs up, GET.*"),
    Allowed("repeats", r"outside \d+", NOTHING, "GET /bound .*", "binding answers: hang up"),
    Allowed(
        "redis-transaction",
        rf"{ANSWER}(: .*)?",
        None,
        None,
        r"state: redis: (a wrong version in a transaction|transaction with version .*)",
    ),
    Allowed(
        "numbers", rf"{ANSWER}: body", None, None, r"state: .*(12345678901234567890|0\.1234567890|'-0'|'-1\.5').*"
    ),
    Allowed("numbers", r"outside \d+: body", r"\d+", r"\d+", "bindings: web body .*12345678901234567890.*"),
    # Events, jobs, actors, workflows.
    Allowed("trace", rf"{HUB}: (header|metadata)\.trace(id|state|parent)", r"00-fresh-fresh-00|\(absent\)", r"\(absent\)|", "events?.*"),
    Allowed("binary-events", rf"{HUB}: (body|messages)", None, None, r"events: 'image/png' .*"),
    Allowed(
        "bulk-metadata",
        rf"{HUB}: (body|messages)",
        r".*(\btype\W.*\bx\b|\bsubject\W.*\bs\b|rawPayload).*",
        None,
        r"events: bulk (without metadata|raw in bulk|gRPC with metadata, traced, to .*)",
    ),
    Allowed("event-trace", rf"{HUB}: (header|metadata)\.tracestate", "a=1|c=3|d=4", rf"{NOTHING}|", "events: .*trace.*"),
    Allowed("bulk-metadata", rf"{HUB}: (header|metadata)\.(rawpayload|cloudevent\.\w+)", None, NOTHING, "events: bulk .*"),
    Allowed("dead-letters", rf"{HUB}: body", r".*deadletterhops.*", case="event.*: .*dead letters.*", alike=alike.uncounted),
    Allowed("event-trace", rf"{HUB}: (body|messages)", r".*\b(baggage|tracestate\W.*a=1)\b.*", None, "events: .*traced.*", alike.without_state),
    Allowed("error-texts", rf"{ANSWER}: body", r".*ERR_PUBSUB_EVENTS_SER.*", r".*ERR_PUBSUB_EVENTS_SER.*", "events: bulk .*", alike.code),
    Allowed("json-spelling", r"grpc-hub-app \d+: messages", case="events: .*", alike=alike.event),
    Allowed("error-texts", rf"{ANSWER}: body", None, r".*errorCode.*", r"actors: (state|reminder) .*", alike.error),
    Allowed("actor-kinds", rf"{ANSWER}: body", case="metadata of the hubs: .*", alike=alike.kinds),
    Allowed(
        "canonical-path",
        rf"{ANSWER}|{HUB}",
        r"PUT /actors/Boat/\S+/method/ HTTP/1.1 ahoy",
        r"PUT /actors/Boat/\S+/method HTTP/1.1 ahoy",
        "actors: call (method '%2e%2e'|gRPC of nothing)",
    ),
    Allowed(
        "negative-periods",
        ANSWER,
        "(500|404) .*(period|reminder not found).*",
        "20[04].*",
        "actors: reminder (timer )?given .*'period': '-1s'.*",
    ),
    Allowed("job-names", ANSWER, "OK .*", "(INVALID_ARGUMENT|INTERNAL|NOT_FOUND) .*", "scheduled jobs: gRPC .* with bars"),
    Allowed("job-names", ANSWER, "20[04].*", "500 .*(job not found: a|failed to delete job).*", "scheduled jobs: name a%7C.*"),
    Allowed("error-texts", rf"{ANSWER}: (body|message|details)", case="jobs: .*", alike=alike.without_remedy),
    Allowed("never", rf"{ANSWER}(: body)?", ".*(never does|job not found).*", "204|.*oneof.*", "scheduled jobs: given .* 31 2 .*"),
    Allowed("error-texts", rf"{ANSWER}: (body|message)", case="actors: call (answered with 404|without placement)", alike=alike.without_remedy),
    Allowed("error-texts", rf"{ANSWER}: body", None, r".*%!\(EXTRA .*", "workflows: .*", alike.unformatted),
    Allowed("error-texts", rf"{ANSWER}: message", None, r".*%!\(EXTRA .*", "workflows: .*", alike.unformatted),
    Allowed("json-spelling", r"hub-app \d+: header\.content-length", r"\d+", r"\d+", "(events|event deliveries|scheduled jobs|actors): .*"),
    Allowed("status-details", rf"{ANSWER}: details", None, None, "(publish errors|events): .*gRPC.*", alike.status),
    Allowed("job-without-data", ANSWER, "200 .*", r"500 .*none of the oneof fields is set.*", "scheduled jobs: .*"),
    Allowed("job-without-data", rf"{ANSWER}|{HUB}", None, rf"0 received|{NOTHING}", "scheduled jobs: (triggered without data|refused .*-1h.*)"),
    Allowed("job-names", ANSWER, "20[0-9] .*|20[0-9]", "500 .*job name is invalid.*|400 .*JOB_NAME_EMPTY.*", r"scheduled jobs: name .*|workflows: id .*%C3%BC"),
)
