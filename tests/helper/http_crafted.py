#!/usr/bin/env python3
"""http_crafted.py HOST:PORT raw|after|behind|bodies FILE.jsonl: sends crafted requests, one TAP line each.

raw: bytes on a connection of their own, judged by the status lines that come back; "close" and "timeout-408-or-close"
are what a connection may do instead. after: the same when the connection has had an answer already; behind: in one
piece with the request before it. bodies: POSTs, judged by their status and, where that is an error, its shape.
After each one the server must still answer a plain request."""
import base64
import http.client
import json
import re
import socket
import sys

WAIT = 8.0
FIRST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{\"content\":\"a\"}"


def statuses(data):
    """Status codes of the final responses in data, in order."""
    found = []
    at = 0
    while True:
        m = re.compile(rb"HTTP/1\.[01] (\d{3}) ").match(data, at)
        if not m:
            return found
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            return found + [int(m.group(1))]
        status = int(m.group(1))
        head = data[at:end].lower()
        at = end + 4
        if status >= 200:
            found.append(status)
        length = re.search(rb"\r\ncontent-length: *(\d+)", head)
        # A HEAD has no body, and there is nothing behind it.
        if length and data[at:at + 1] != b"H":
            at += int(length.group(1))


def talk(address, raw, want, mode):
    """What came back for raw, and whether the server closed the connection."""
    data = b""
    with socket.create_connection(address, timeout=WAIT) as s:
        try:
            if mode == "after":
                s.sendall(FIRST)
                while b"}" not in data:
                    data += s.recv(65536)
                assert statuses(data) == [200], data
                data = b""
            want += mode == "behind"
            s.sendall(FIRST + raw if mode == "behind" else raw)
            while True:
                if len(statuses(data)) >= want and want > 0:
                    s.settimeout(0.15)
                more = s.recv(65536)
                if not more:
                    return data, True
                data += more
        except socket.timeout:
            return data, False
        except (ConnectionResetError, BrokenPipeError):
            return data, True


def judge_raw(address, case, mode):
    expect = case["expect"]
    several = len(expect) > 1 and all(e == 200 for e in expect)
    data, closed = talk(address, base64.b64decode(case["raw_b64"]), len(expect) if several else 1, mode)
    found = statuses(data)
    if mode == "behind":
        if found[:1] != [200]:
            return False, found
        found = found[1:]
    # A refusal is one answer, and the last.
    if not several and (len(found) > 1 or (found and found[0] >= 400 and len(re.findall(rb"HTTP/1\.[01] \d", data)) > 1 + (mode == "behind"))):
        return False, data
    if several:
        return found == expect, found
    if found:
        ok = found[0] in expect or (found[0] == 408 and "timeout-408-or-close" in expect)
        if found[0] == 405:
            ok = ok and b"\r\nallow:" in data.lower()
        return ok, found
    return closed and ("close" in expect or "timeout-408-or-close" in expect), "closed" if closed else "open"


def post(address, path, body):
    c = http.client.HTTPConnection(*address, timeout=20)
    c.request("POST", path, body, {"Content-Type": "application/json"})
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, data


def judge_body(address, case):
    body = case["body"].encode("utf-8", "surrogatepass")
    status, data = post(address, case["path"], body)
    shape = True
    if status >= 400:
        e = json.loads(data)["error"]
        shape = isinstance(e["message"], str) and isinstance(e["type"], str) and "param" in e and "code" in e
    return status in case["status"] and shape, (status, data[:200])


def alive(address):
    c = http.client.HTTPConnection(*address, timeout=WAIT)
    c.request("GET", "/health")
    ok = c.getresponse().status == 200
    c.close()
    return ok


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    address = (host, int(port))
    mode = sys.argv[2]
    with open(sys.argv[3], encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    good = 0
    for i, case in enumerate(cases, 1):
        ok, found = judge_body(address, case) if mode == "bodies" else judge_raw(address, case, mode)
        ok = ok and alive(address)
        good += ok
        print(f"{'ok' if ok else 'not ok'} {i} - {case['id']}: {case['why']}")
        if not ok:
            print(f"# expected {case.get('expect', case.get('status'))}, found {found}")
    print(f"1..{len(cases)}")
    print(f"# {good} of {len(cases)}")
    sys.exit(0 if good == len(cases) else 1)


main()
