"""The differences of two observations of a case."""

import base64
import collections.abc
import dataclasses
import json
import pathlib
import re

from differential.product import SPAN, TRACE

PAGES = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/differences"
# JSON that the API itself writes is compared as JSON.
SPELLING = "json-spelling"
# A Dapr sidecar that a request crashes is restarted.
CRASH = "crash"
ABSENT = "(absent)"
# Cases whose requests to apps are JSON written by the API.
WRAPPED = ("events: ", "event deliveries: ", "scheduled jobs: ", "actors: ")


@dataclasses.dataclass(frozen=True)
class Difference:
    """A field of a case that differs between the products."""
    case: str
    field: str
    ours: str
    dapr: str

    def __str__(self):
        return f"  {self.field}\n    ours: {shown(self.ours)}\n    dapr: {shown(self.dapr)}"


@dataclasses.dataclass(frozen=True)
class Allowed:
    """A kind of difference that is on purpose, and the key of its row in docs/reference/differences. Patterns have to match
    as a whole; a pattern that is None matches anything. `alike` gives what both have to have in common all the same."""
    key: str
    field: str
    ours: str = None
    dapr: str = None
    case: str = None
    alike: collections.abc.Callable = None

    def covers(self, difference):
        pairs = ((self.field, difference.field), (self.ours, difference.ours), (self.dapr, difference.dapr),
                 (self.case, difference.case))
        if not all(pattern is None or re.fullmatch(pattern, text, re.DOTALL) for pattern, text in pairs):
            return False
        if self.alike is None:
            return True
        ours, dapr = self.alike(difference.ours), self.alike(difference.dapr)
        return ours is not None and ours == dapr


def shown(text, length=400):
    return repr(text) if len(text) <= length else f"{text[:length]!r}... ({len(text)} characters)"


def trace(found):
    """The form of a trace context; the caller's own ids are distinguished from others."""
    version, trace_id, span, flags = found.groups()

    def kind(value, given):
        return "given" if value == given else "fresh" if value.strip("0") else "zero"
    return f"{version}-{kind(trace_id, TRACE)}-{kind(span, SPAN)}-{flags}"


# What is different each time, in one product too. The keys are those of the rows of docs/reference/differences.
NEUTRAL = (
    ("varies", re.compile(r"\b([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\b"), trace),
    ("varies", re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UUID"),
    ("varies", re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT"), "DATE"),
    ("varies", re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"), "TIME"),
    ("varies", re.compile(r"\b[0-9a-f]{16}-[0-9a-f]+\b"), "UUID"),  # an ETag of our in-memory store
    ("varies", re.compile(r'(untimeVersion": ?)"[^"]*"'), r'\1"VERSION"'),
    ("varies", re.compile(r"\bb=2,a=1\b"), "a=1,b=2"),  # re-encoded baggage
    ("varies", re.compile(r'("enabledFeatures": ?\[)([^]]*)'), lambda found: found[1] + ",".join(sorted(re.split(", ?", found[2])))),
    ("varies", re.compile(r"\b127\.0\.0\.1:(?!200[0-3]\d)[1-9]\d{4}\b"), "127.0.0.1:PORT"),
)


def neutral(field, text):
    if field.endswith(".grpc-trace-bin") and len(text) == 29 and text.startswith("\0\0"):
        raw = text.encode("latin-1").hex()
        text = f"00-{raw[4:36]}-{raw[38:54]}-{raw[56:58]}"
    for _, pattern, word in NEUTRAL:
        text = pattern.sub(word, text)
    return text


def same_json(ours, dapr):
    """Whether two texts are the same JSON, ignoring white space and member order."""
    try:
        values = [json.loads(text, parse_int=str, parse_float=str) for text in (ours, dapr)]
    except ValueError:
        return False
    return values[0] == values[1]


def parts(seen):
    """An observation by answer and by request to an app: {part: {field: text}}."""
    found = {}
    for field, text in seen.items():
        found.setdefault(field.partition(": ")[0], {})[field] = text
    return found


def whole(part):
    """A one-line summary of a response or request."""
    lines = [text for field, text in part.items() if field.endswith((": status", ": request", ": message", ": body"))]
    return " ".join(lines)


def compared(case, ours, dapr):
    """The differences of two observations, each a {field: text}. If statuses differ, or only one app received a request, the
    rest is not compared."""
    found = []
    sides = [parts({field: neutral(field, text) for field, text in seen.items()}) for seen in (ours, dapr)]
    for name in dict.fromkeys((*sides[1], *sides[0])):
        pair = [side.get(name, {}) for side in sides]
        first = [part.get(f"{name}: status", part.get(f"{name}: request", ABSENT)) for part in pair]
        if first[0] != first[1]:
            found.append(Difference(case, name, *(whole(part) or ABSENT for part in pair)))
        else:
            found.extend(fields(case, *pair))
    return found


def fields(case, ours, dapr):
    """The differences of two answers, or of two requests."""
    found = []
    for field in dict.fromkeys((*dapr, *ours)):
        pair = [seen.get(field, ABSENT) for seen in (ours, dapr)]
        # The body of an invocation is the app's, unless it is an API error.
        of_the_api = field.startswith("answer") and (
            not case.startswith("invoke: ") or pair[1].startswith(('{"code":', '{"errorCode":', '{"id":')))
        # So are requests to apps, except those that the API wraps: events and jobs.
        wrapped = case.startswith(WRAPPED) and not field.startswith("answer")
        if pair[0] == pair[1] or (of_the_api or wrapped) and field.endswith((": body", ": details")) and same_json(*pair):
            continue
        found.append(Difference(case, field, *pair))
    return found


def pages():
    """All pages of differences."""
    return "\n".join(page.read_text() for page in sorted(PAGES.glob("*.md")))


def misplaced():
    """Rows of the pages of differences with more or fewer columns than their table."""
    columns, found = 0, []
    for line in pages().splitlines():
        here = line.count(" | ") if line.startswith("|") else 0
        columns = columns if here and columns else here
        if here != columns:
            found.append(line)
    return found


def documented():
    """The keys of the rows of differences: words in brackets at the end of the first cell."""
    return re.findall(r"^\|[^|]*\[([a-z0-9-]+)\] \|", pages(), re.MULTILINE)


def binary(text):
    """Bytes in the JSON form of a message."""
    return base64.b64encode(text).decode()
