"""Raw HTTP/1.1: neither requests nor responses are normalised."""

import socket

HOST = "127.0.0.1"
TIMEOUT = 20
HEAD_LIMIT = 1 << 20


class Broken(Exception):
    """The peer closed in the middle of a message."""


class Stream:
    """Reads messages from a connection."""

    def __init__(self, connection):
        self.connection = connection
        self.held = b""

    def more(self):
        """Waits for bytes; False at the end of the stream."""
        try:
            got = self.connection.recv(65536)
        except ConnectionError:
            return False
        self.held += got
        return bool(got)

    def line(self):
        while b"\n" not in self.held:
            if len(self.held) > HEAD_LIMIT or not self.more():
                raise Broken("in a line")
        line, _, self.held = self.held.partition(b"\n")
        return line.removesuffix(b"\r").decode("latin-1")

    def exactly(self, count):
        while len(self.held) < count:
            if not self.more():
                raise Broken(f"after {len(self.held)} of {count} bytes")
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    def rest(self):
        while self.more():
            pass
        taken, self.held = self.held, b""
        return taken

    def fields(self):
        """Header or trailer fields up to the empty line: (name in lower case, value)."""
        found = []
        while line := self.line():
            name, _, value = line.partition(":")
            found.append((name.lower(), value.strip(" \t")))
        return found

    def chunks(self):
        """A chunked body and its trailers."""
        body = b""
        while size := int(self.line().partition(";")[0], 16):
            body += self.exactly(size)
            self.line()
        return body, self.fields()


def values(fields, name):
    return [value for key, value in fields if key == name]


def described(fields, prefix):
    """Fields as an observation: all values of a name, in order."""
    names = dict.fromkeys(name for name, _ in fields)
    return {f"{prefix}.{name}": " | ".join(values(fields, name)) for name in names}


def message_body(stream, fields, to_end):
    """Framing, body and trailers of a message; with `to_end`, a body without length ends with the connection."""
    if "chunked" in values(fields, "transfer-encoding"):
        return ("chunked", *stream.chunks())
    if lengths := values(fields, "content-length"):
        return "length", stream.exactly(int(lengths[0])), []
    return ("close", stream.rest(), []) if to_end else ("none", b"", [])


def chunked(body, size=1000, trailers=()):
    pieces = (body[at:at + size] for at in range(0, len(body), size))
    return b"".join((*(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n", block(trailers), b"\r\n"))


def block(fields):
    """Fields in wire format. Text is Latin-1; bytes are allowed."""
    return b"".join(b"%s: %s\r\n" % (octets(name), octets(value)) for name, value in fields)


def octets(text):
    return text if isinstance(text, bytes) else text.encode("latin-1")


def ask(port, request, method):
    """Sends raw request bytes on a new connection; returns the observation of the response."""
    try:
        with socket.create_connection((HOST, port), TIMEOUT) as connection:
            return _exchange(connection, request, method)
    except TimeoutError:
        return {"status": f"no answer in {TIMEOUT} s"}
    except OSError as error:
        return {"status": f"connection failed: {type(error).__name__}"}


def _exchange(connection, request, method):
    try:
        connection.sendall(request)
    except ConnectionError:
        pass  # a response may arrive before the end of the request
    stream = Stream(connection)
    seen = {}
    try:
        while True:
            _, status, *reason = stream.line().split(" ", 2)
            fields = stream.fields()
            if not status.startswith("1") or status == "101":
                break
            seen["interim"] = status
        seen.update(status=status, reason="".join(reason))
        framing = () if method == "HEAD" else ("content-length", "transfer-encoding")
        headers = [field for field in fields if field[0] not in framing]
        seen.update(described(headers, "header"))
        if method == "HEAD" or status in ("101", "204", "304"):
            seen["framing"] = " ".join(["none", *values(fields, "content-length")]) if method != "HEAD" else "none"
        else:
            seen["framing"], body, trailers = message_body(stream, fields, to_end=True)
            seen["body"] = body.decode("latin-1")
            seen.update(described(trailers, "trailer"))
    except Broken as broken:
        seen["broken"] = "before the end" if "status" in seen else f"before an answer: {broken}"
    except ValueError as error:
        seen["broken"] = f"not HTTP: {error}"
    return seen
