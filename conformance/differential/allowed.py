"""The differences that are on purpose. Each names its row of known-differences.md by its key."""

from differential.compare import Allowed

NOTHING = r"\(absent\)"
APPS = r"(app|outside|grpc-app) \d+"
TO_APP = r"(app|outside) \d+"
ANSWER = r"answer \d+"
# What Go and its libraries write where ours write something else; the words before it are Dapr's, and the same.
GO = (
    r"json: |invalid character|unexpected end of JSON|strconv\.|net/url|invalid URL escape|dial tcp|desc = |transport: |"
    r"EOF|proto:|cannot unmarshal|http: |cardinality|no such file|error parsing|redis: |malformed HTTP|"
    r"stream too large|invalid byte|expected a map|invalid TTL|pq: |etag|file "
)
HOP_BY_HOP = (
    r"connection|keep-alive|proxy-connection|transfer-encoding|upgrade|http2-settings|te|trailer|proxy-authorization|"
    r"proxy-authenticate|x-hop"
)
PATHS = (
    r"path with (nothing|an encoded \w+|encoded \w+|dots|a dot|double slashes|a slash|a control|NUL|an encoded|the word|"
    r"raw JSON in|raw angles|a raw|raw UTF-8|marks|colons)|more slashes|by header.*: dots|method '[^']*[./?#%\\{ ][^']*'"
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
    Allowed("tracestate", rf"({APPS}|{ANSWER}): \w+\.tracestate", None, None, "invoke: .*(trace|state).*"),
    # What the libraries of the two add.
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
    ),
    Allowed(
        "server-errors",
        rf"{ANSWER}: (framing|body|header\.(connection|date|content-type|x-content-type-options))",
        None,
        rf"4\d\d .*|501 .*|505 .*|Unsupported.*|close|{NOTHING}|text/plain; charset=utf-8|text/plain",
        r"invoke: written: .*|invoke: (path|headers).*|state: .*: key .*",
    ),
    Allowed(
        "error-texts",
        rf"{ANSWER}: (body|message)",
        r".*(couldn't find service|required metadata|not speak gRPC).*",
        r".*(timeout waiting for address|missing dapr-callee|app id is empty|reading server preface).*",
    ),
    Allowed(
        "error-texts",
        ANSWER,
        "(INTERNAL|UNKNOWN) .*",
        "(UNAVAILABLE|UNKNOWN) .*(dial tcp|invalid char|end of JSON).*",
    ),
    Allowed(
        "error-texts",
        rf"{ANSWER}: (body|message)",
        ".*app channel is not initialized.*",
        ".*app channel not initialize.*",
    ),
    Allowed("server-errors", rf"{ANSWER}|{APPS}", None, None, r"invoke: written: .*"),
    Allowed(
        "server-errors", rf"{ANSWER}: header\.vary", "Origin", NOTHING, r"invoke: path with (a bad|half an) escape.*"
    ),
    Allowed("status-details", rf"{ANSWER}: details", None, NOTHING, "invoke: InvokeService: (gRPC answer|random) .*"),
    Allowed(
        "status-details",
        rf"{ANSWER}: details",
        ".*(DAPR_STATE_ILLEGAL_KEY|DAPR_STATE_QUERYING).*",
        ".*(BadRequest|ResourceInfo).*",
        "state: .*",
    ),
    # How bodies travel.
    Allowed("answer-length", rf"{ANSWER}: framing", "length|chunked", "length|chunked"),
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
    Allowed("gzip", rf"{ANSWER}: (header\.content-encoding|body)", None, None, r"invoke: .*gzip.*"),
    Allowed("broken-answer", rf"{ANSWER}(: .*)?", None, None, r"invoke: .*(break off|shorter than its length).*"),
    Allowed("gzip", rf"{ANSWER}: header\.dapr-content-length", r"\d+", NOTHING, r"invoke: InvokeService: .*gzip.*"),
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
    Allowed("connect", rf"{ANSWER}: (framing|body)", "close|", "length|ahoy", "invoke: method CONNECT.*"),
    Allowed("empty-data", rf"{ANSWER}: body", r"\{(.*, )?\"data\": \{\}\}", None, "invoke: InvokeService: .*"),
    Allowed("body-limit", rf"{ANSWER}|{APPS}", None, None, r"invoke: InvokeService: 65537 bytes.*"),
    Allowed("switching", ANSWER, "502 .*", "101.*", "invoke: .*with 101.*"),
    # Methods, targets.
    Allowed("methods", rf"{ANSWER}|{APPS}", "501 .*|\\(absent\\)", None, "invoke: .*(PROPFIND|BREW|M-SEARCH).*"),
    Allowed("methods", ANSWER, "204|200 1", "(404|500|204).*", "state: .*: lower case"),
    Allowed(
        "proxied-path",
        rf"{ANSWER}|{APPS}",
        rf"(INVALID_ARGUMENT|UNIMPLEMENTED) .*|{NOTHING}",
        None,
        "invoke: proxied: method .*",
    ),
    Allowed("callbacks", ANSWER, "PERMISSION_DENIED .*callback.*", None, "invoke: proxied: method .*AppCallback.*"),
    Allowed("not-utf8", rf"{ANSWER}|{APPS}", None, None, "invoke: path with other bytes.*|state: .*: key '%ff.*"),
    Allowed(
        "query-escapes",
        rf"{APPS}(: messages)?",
        ".*%2[27].*",
        None,
        "invoke: .*(raw JSON|a raw query|raw angles|random).*",
    ),
    Allowed("query-escapes", ANSWER, "(200|OK) .*", "(403|INTERNAL) .*", "invoke: .*(raw JSON|raw ).*"),
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
    Allowed("cors-names", rf"{ANSWER}: header\.(access-control-allow-headers|vary)", None, None, "(cors|invoke): .*"),
    Allowed("internal-fields", rf"{APPS}: \w+\.(destination-app-id|dapr-app-id)", NOTHING, "x|"),
    Allowed("hop-by-hop", rf"({ANSWER}|{APPS}): \w+\.(dapr-)?({HOP_BY_HOP})", NOTHING, None),
    Allowed("http2-fields", ANSWER, r"INTERNAL Stream removed.*", None, r"invoke: .*: metadata hop-by-hop.*"),
    Allowed("http2-fields", r"(app|grpc-app) \d+", NOTHING, None, r"invoke: .*: metadata hop-by-hop.*"),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-(caller|callee)-.*", None, None),
    Allowed("api-token", rf"{APPS}: \w+\.dapr-api-token", NOTHING, "of-the-api"),
    Allowed(
        "header-values",
        ANSWER,
        "200 .*|404 .*|OK .*|NOT_FOUND .*",
        r"(500|INTERNAL) .*(non-printable ASCII|invalid UTF-8|after \d retries|server response headers).*",
    ),
    Allowed("header-values", ANSWER, "OK .*|NOT_FOUND .*", "INTERNAL .*", "invoke: .*60 KB.*"),
    Allowed("header-values", APPS, ".* HTTP/1.1 .*|/dapr.*", NOTHING, r"invoke: .*(Latin-1|UTF-8|tabs|60 KB).*"),
    # Paths. v1.17.0 hands them on as they come; v1.17.13 makes them canonical first.
    Allowed("canonical-path", rf"{TO_APP}|grpc-app \d+(: messages)?", None, None, rf"invoke: .*({PATHS}).*"),
    Allowed(
        "canonical-path",
        ANSWER,
        r"(200|OK|500|INTERNAL) .*",
        r"(500|INTERNAL|403|200|OK) .*",
        r"invoke: .*(control character|NUL|encoded (question mark|hash|per cent)|method '[^']*[?#%\\{][^']*').*",
    ),
    # State and bindings.
    Allowed("redis-json", rf"{ANSWER}: body", None, None, r"state: redis: value .*(u2028|\u2028|\{\"b\": 1).*"),
    Allowed("redis-json", rf"{ANSWER}: .*", r".*support.* querying.*|.*", ".*redis-json.*", "state: redis: .*query"),
    Allowed("binding-path", rf"{ANSWER}|outside \d+", None, None, "bindings: .*path beyond.*"),
    Allowed("empty-value", ANSWER, "200 ", "204", "state: memory: gRPC value nothing"),
    Allowed("first-write", ANSWER, "409 .*", "500 .*", "state: redis: first write.*"),
    Allowed("bulk-json", rf"{ANSWER}: body", ".*the stored value is not JSON.*", "", "random .*"),
    Allowed("redis-json", rf"{ANSWER}: body", None, None, "random .*"),
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
)
