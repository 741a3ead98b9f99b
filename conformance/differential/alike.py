"""Normalisation: texts that differ only in an allowed way are equal after these functions."""

import base64
import binascii
import json
import re
import urllib.parse

# Dapr's own prefix of an error, before the text of its libraries.
OWN_WORDS = re.compile(
    r"failed to invoke, id: .*?, err: |failed deserializing HTTP body: |error invoking output binding [^:]*: |"
    r"failed (saving|deleting|getting) state [^:]*: (possible etag mismatch\. error from state store|invalid etag value: )?|"
    r"error while executing state transaction: (invalid etag value: )?|"
    r"error (creating|getting|deleting) actor (reminder|timer): |error (getting actor|saving actor transaction) state: "
)

# v1.17.0 nests an error in itself.
WRAPPED = "api error: code = InvalidArgument desc = "


def error(text):
    """Codes, details and Dapr's own prefix of an error, without the rest."""
    try:
        told = json.loads(text)
    except ValueError:
        return own_words(text)
    if not isinstance(told, dict):
        return None
    return status(json.dumps({**told, "message": own_words(str(told.get("message")))}).replace(WRAPPED, ""))


def status(text):
    """A status, or an error over HTTP, with its details in any order."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    details = sorted(told.get("details", ()), key=lambda detail: detail["@type"])
    return json.dumps({**told, "details": details}, sort_keys=True)


def own_words(text):
    """Dapr's own prefix of an error."""
    found = OWN_WORDS.match(text)
    return found[0] if found else ""


def value(text):
    """A JSON value regardless of member order and escapes; also in base64 in a gRPC response."""
    try:
        read = json.loads(in_utf8(text))
        if isinstance(read, dict) and isinstance(read.get("data"), str):
            read = {**read, "data": json.loads(base64.b64decode(read["data"], validate=True))}
    except (ValueError, binascii.Error):
        return None
    return json.dumps(read, sort_keys=True)


def items(text):
    """The items of a list in any order, each of them as a value."""
    try:
        read = json.loads(in_utf8(text))
    except ValueError:
        return None
    return sorted(json.dumps(item, sort_keys=True) for item in read) if isinstance(read, list) else None


def kinds(text):
    """Metadata of a sidecar, its lists of actors in any order."""
    try:
        read = json.loads(in_utf8(text))
    except ValueError:
        return None
    for held in (read, read.get("actorRuntime", {})):
        for name in held.keys() & {"actors", "activeActors"}:
            held[name] = sorted(held[name], key=json.dumps)
    return json.dumps(read, sort_keys=True)


def names(text):
    """Names of fields in any case and order."""
    return sorted(name.strip().lower() for name in re.split(r"[,|]", text))


def unescaped(text):
    """A text with its escapes undone."""
    return urllib.parse.unquote_to_bytes(text.replace('\\"', '"').encode("latin-1", "replace"))


def in_utf8(text):
    """A body as text: HTTP observations have one character for each byte."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def untraced(text):
    """An event, over HTTP or gRPC, without the trace it is part of."""
    text = re.sub(r' fields \{ key: "trace(id|parent)" value \{ string_value: "[^"]*" \} \}', "", in_utf8(text))
    text = text.replace(' fields { key: "tracestate" value { string_value: "" } }', "")
    try:
        event = json.loads(text)
    except ValueError:
        return text
    return json.dumps(without_trace(event), sort_keys=True)


def without_trace(event):
    if isinstance(event, dict):
        return {name: without_trace(value) for name, value in event.items() if name not in ("traceid", "traceparent")}
    return [without_trace(item) for item in event] if isinstance(event, list) else event


def uncounted(text):
    """An event over HTTP without its trace and its count of dead letters."""
    return re.sub(r'"deadletterhops": ?\d+(, )?', "", untraced(text))


def event(text):
    """An event over gRPC without its trace, with normalised JSON."""
    text = untraced(text)
    if not (found := re.search(r' data: "((?:[^"\\]|\\.)*)"', text)):
        return text
    data = found[1].encode().decode("unicode_escape")
    try:
        return text.replace(found[0], ""), json.dumps(json.loads(data), sort_keys=True)
    except ValueError:
        return text


def without_state(text):
    """An event, over HTTP or gRPC, without its trace state and baggage."""
    text = re.sub(r' fields \{ key: "(baggage|tracestate)" value \{ string_value: "[^"]*" \} \}', "", text)
    return re.sub(r'"(baggage|tracestate)": ?"[^"]*",? ?', "", text)


def code(text):
    """The code of an error over HTTP."""
    try:
        return json.loads(text).get("errorCode")
    except ValueError:
        return None


def unformatted(text):
    """A text without the suffix that Go adds for surplus format arguments."""
    return re.sub(r"%!\(EXTRA .*?\)(?=\"|$)", "", text)


def without_remedy(text):
    """An error of actors or jobs without our remedy."""
    return re.sub(r": (the app answered 404; see that .*?|name it with --.*?|jobs, actor reminders and .*?)(?=\"|$)", "", text)
