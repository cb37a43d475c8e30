#!/usr/bin/env python3
"""http_llhttp.py HOST:PORT FOLDER: the request vectors of llhttp against a running server. A vector is judged by its
first message: taken (any status of a route) or refused (400, 413, 414, 431, 505, or a closed connection). Where we differ
on purpose, the reason is listed here. Prints TAP."""
import re
import socket
import sys
import glob
import os

REFUSALS = {400, 411, 413, 414, 431, 501, 505}
# What llhttp takes and we refuse, or the reverse, and why.
ANY_METHOD = "any token is a method, and one that a path lacks is 404 or 405"
ONLY_HTTP = "a request line ends with HTTP/1.0 or HTTP/1.1"
WHOLE_LINE = "a line is judged when it is complete"
ONLY_CHUNKED = "chunked is the only coding, and two readers may differ about others"
NO_BLANKS = "a length is digits and nothing behind them"
REASONS = {
    "content-length.md: Spaces in `Content-Length` (surrounding)": NO_BLANKS,
    "content-length.md: Tabs in `Content-Length` (surrounding)": NO_BLANKS,
    "invalid.md: HTTP protocol and ANNOUNCE method": ANY_METHOD,
    "invalid.md: Invalid method": ANY_METHOD,
    "invalid.md: Invalid HTTP version": WHOLE_LINE,
    "invalid.md: Invalid space after start line": WHOLE_LINE,
    "method.md: SOURCE request with ICE": ONLY_HTTP,
    "method.md: OPTIONS request with RTSP": ONLY_HTTP,
    "method.md: ANNOUNCE request with RTSP": ONLY_HTTP,
    "sample.md: No HTTP version": ONLY_HTTP,
    "transfer-encoding.md: POST with `chunked` as last transfer-encoding": ONLY_CHUNKED,
    "transfer-encoding.md: POST with `chunked` as last transfer-encoding (multiple headers)": ONLY_CHUNKED,
    "transfer-encoding.md: Missing last-chunk": "the path is unknown: answered, and closed, before the body is read",
}


def vectors(path):
    text = open(path, encoding="utf-8").read()
    title = ""
    pattern = r"^(#{1,6} [^\n]*)$|<!-- meta=(\{.*?\}) -->\s*```http\n(.*?)^```$.*?^```log\n(.*?)^```$"
    for m in re.finditer(pattern, text, re.M | re.S):
        if m.group(1):
            title = m.group(1).lstrip("# ")
        else:
            yield title, m.group(2), decode(m.group(3)), m.group(4)


def decode(raw):
    raw = re.sub(r"\n\Z", "", raw)
    raw = re.sub(r"\\(\r\n|\r|\n)", "", raw)
    raw = re.sub(r"\r\n|\r|\n", "\r\n", raw)
    for a, b in (("\\r", "\r"), ("\\n", "\n"), ("\\t", "\t"), ("\\f", "\f")):
        raw = raw.replace(a, b)
    data = raw.encode("utf-8")
    return re.sub(rb"\\x([0-9a-fA-F]{2})", lambda m: bytes([int(m.group(1), 16)]), data)


def with_host(raw):
    """The vectors are about parsing; most have no Host, for want of which we would refuse them all."""
    if re.search(rb"^host *:", raw, re.I | re.M):
        return re.sub(rb"(?im)^(host *: *)[^\r\n]*", rb"\1localhost", raw, count=1)
    start = len(raw) - len(raw.lstrip(b"\r\n"))
    end = raw.find(b"\r\n", start)
    return raw if end < 0 else raw[:end + 2] + b"Host: localhost\r\n" + raw[end + 2:]


def expected(log):
    for line in log.splitlines():
        if "error code=" in line and "reason=\"Paused" not in line and "Pause on" not in line and "code=22" not in line and "code=21" not in line and "code=23" not in line:
            return "refused"
        if "message complete" in line:
            return "taken"
    return "waits"


def found(address, raw):
    data = b""
    with socket.create_connection(address, timeout=1.2) as s:
        try:
            s.sendall(raw)
            while not re.match(rb"HTTP/1\.[01] [2-5]", re.sub(rb"^HTTP/1\.1 100 [^\r]*\r\n\r\n", b"", data)):
                more = s.recv(65536)
                if not more:
                    return "refused"
                data += more
        except socket.timeout:
            return "waits"
        except OSError:
            return "refused"
    data = re.sub(rb"^HTTP/1\.1 100 [^\r]*\r\n\r\n", b"", data)
    return "refused" if int(data[9:12]) in REFUSALS and b'"code":"invalid_' not in data else "taken"


def main():
    host, port = sys.argv[1].split(":")
    n = agreed = listed = bad = 0
    for path in sorted(glob.glob(os.path.join(sys.argv[2], "*.md"))):
        for title, meta, raw, log in vectors(path):
            n += 1
            name = f"{os.path.basename(path)}: {title}"
            lenient = "lenient" in meta
            want, got = expected(log), found((host, int(port)), with_host(raw))
            if want == got or (want == "waits" and got != "refused"):
                agreed += 1
                print(f"ok {n} - {name}")
                continue
            reason = "lenient parsing, which this server does not offer" if lenient else REASONS.get(name)
            if reason:
                listed += 1
                print(f"ok {n} - {name}: {got}, not {want}: {reason}")
            else:
                bad += 1
                print(f"not ok {n} - {name}: expected {want}, found {got}")
                print(f"# {raw[:160]!r}")
    print(f"1..{n}")
    print(f"# {n} vectors: {agreed} agreed, {listed} with a listed reason, {bad} neither")
    sys.exit(bad > 0)


main()
