"""The differences that are on purpose. Each names its row of known-differences.md by its key."""

from differential.compare import Allowed

NOTHING = r"\(absent\)"
APPS = r"(app|outside|grpc-app) \d+"
TO_APP = r"(app|outside) \d+"
ANSWER = r"answer \d+"
# What Go and its libraries write where ours write something else; the words before it are Dapr's, and the same.
GO = (r"json: |invalid character|unexpected end of JSON|strconv\.|net/url|invalid URL escape|dial tcp|desc = |transport: |EOF|proto:|"
      r"cannot unmarshal|http: |cardinality|no such file|error parsing|redis: |malformed HTTP|stream too large|invalid TTL|pq: |etag|file ")
HOP_BY_HOP = (r"connection|keep-alive|proxy-connection|transfer-encoding|upgrade|http2-settings|te|trailer|proxy-authorization|"
              r"proxy-authenticate|x-hop")
PATHS = (r"path with (an encoded \w+|encoded \w+|dots|a dot|double slashes|a slash|a control|NUL|an encoded|the word|raw JSON in|"
         r"raw angles|a raw|raw UTF-8|marks|colons)|more slashes|by header.*: dots|method '[^']*[./?#%\\{ ][^']*'")

ALLOWED = (
    # Traces.
    Allowed("trace", rf"({ANSWER}|{APPS}): \w+\.(traceparent|grpc-trace-bin)",
            rf"00-(fresh|given)-fresh-0[01]|{NOTHING}", rf"00-zero-zero-00|{NOTHING}"),
    Allowed("trace", rf"{APPS}: \w+\.(traceparent|grpc-trace-bin)", "00-fresh-fresh-00", "00-fresh-fresh-01"),
    Allowed("grpc-span", r"grpc-app \d+: metadata\.(traceparent|grpc-trace-bin)", r"00-(fresh|given)-fresh-0[01]",
            rf"00-given-given-0[01]|{NOTHING}"),
    # What the libraries of the two add.
    Allowed("user-agent", rf"{APPS}: \w+\.user-agent", None, rf"Go-http-client/1\.1|grpc-go/.*|{NOTHING}"),
    Allowed("user-agent", rf"{TO_APP}: header\.accept-encoding", NOTHING, "gzip"),
    Allowed("transport-metadata", rf"({ANSWER}|{TO_APP}): header\.dapr-(grpc-accept-encoding|authority|grpc-encoding)",
            NOTHING),
    Allowed("reason", rf"{ANSWER}: reason"),
    Allowed("reason", rf"{ANSWER}: header\.metadata\.status"),
    Allowed("error-texts", rf"{ANSWER}: (body|message|details)",
            r'(?!HTTP).*(errorCode|failed|error|rpc|code"|Bad Request).*', rf".*({GO}).*"),
    Allowed("server-errors", rf"{ANSWER}: (framing|body|header\.(connection|date|content-type|x-content-type-options))",
            None, rf"4\d\d .*|501 .*|505 .*|Unsupported.*|close|{NOTHING}|text/plain; charset=utf-8|text/plain",
            r"invoke: written: .*|invoke: (path|headers).*|state: .*: key .*"),
    # How bodies travel.
    Allowed("answer-length", rf"{ANSWER}: framing", "length|chunked", "length|chunked"),
    Allowed("request-length", rf"{TO_APP}: (header\.(content-length|transfer-encoding)|framing)",
            rf"none|length|\d+|{NOTHING}", rf"chunked|{NOTHING}"),
    Allowed("no-sniffing", rf"{ANSWER}: header\.content-type", NOTHING,
            r"text/(plain|html); charset=utf-8|application/json"),
    Allowed("gzip", rf"{ANSWER}: (header\.content-encoding|body)", None, None, r"invoke: .*gzip.*"),
    Allowed("broken-answer", rf"{ANSWER}: .*", None, None, r"invoke: .*(break off|shorter than its length).*"),
    # Fields.
    Allowed("hop-by-hop", rf"({ANSWER}|{APPS}): \w+\.(dapr-)?({HOP_BY_HOP})", NOTHING, None),
    Allowed("http2-fields", ANSWER, r"INTERNAL Stream removed.*", None, r"invoke: InvokeService: metadata hop-by-hop.*"),
    Allowed("http2-fields", r"(app|grpc-app) \d+", NOTHING, None, r"invoke: InvokeService: metadata hop-by-hop.*"),
    Allowed("forged-caller", rf"{APPS}: \w+\.dapr-(caller|callee)-.*", None, None),
    Allowed("api-token", rf"{APPS}: \w+\.dapr-api-token", NOTHING, "of-the-api"),
    Allowed("header-values", ANSWER, "200 .*|OK .*|NOT_FOUND .*",
            r"(500|INTERNAL) .*(non-printable ASCII|invalid UTF-8|after \d retries).*"),
    Allowed("header-values", APPS, ".* HTTP/1.1 .*|/dapr.*", NOTHING, r"invoke: .*(Latin-1|UTF-8|tabs|60 KB).*"),
    # Paths. v1.17.0 hands them on as they come; v1.17.13 makes them canonical first.
    Allowed("canonical-path", rf"{TO_APP}|grpc-app \d+(: messages)?", None, None, rf"invoke: .*({PATHS}).*"),
    Allowed("canonical-path", ANSWER, r"(200|OK|500|INTERNAL) .*", r"(500|INTERNAL|403|200|OK) .*",
            r"invoke: .*(control character|NUL|encoded (question mark|hash|per cent)|method '[^']*[?#%\\{][^']*').*"),
    # State.
    Allowed("redis-transaction", rf"{ANSWER}(: .*)?", None, None,
            r"state: redis: (a wrong version in a transaction|transaction with version .*)"),
    Allowed("numbers", rf"{ANSWER}: body", None, None, r"state: .*12345678901234567890.*|state: .*0\.1234567890.*"),
)
