#!/usr/bin/env python3
"""soak.py URL PID REQUESTS [CLIENTS]: many clients at once, of whom some hang up, reset, send too much or nonsense.
Every answer that should come must come and be equal to the same request's first answer; memory and descriptors of the
server must stay where they are. Prints TAP."""
import http.client
import json
import os
import random
import socket
import struct
import sys
import threading
import time

host, port = sys.argv[1].removeprefix("http://").split(":")
ADDRESS = (host, int(port))
PID, TOTAL = int(sys.argv[2]), int(sys.argv[3])
CLIENTS = int(sys.argv[4]) if len(sys.argv) > 4 else 32
lock = threading.Lock()
done, faults, answers, rss = 0, [], {}, {}
kinds = {}


def memory():
    with open(f"/proc/{PID}/smaps_rollup", encoding="ascii") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith("Anonymous:"))


def descriptors():
    return len(os.listdir(f"/proc/{PID}/fd"))


def request(rng, stream):
    """A conversation of some turns; few enough different ones that their answers can be compared."""
    k = rng.randrange(40)
    turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"word {k} {i}"} for i in range(1 + 2 * (k % 4))]
    body = {"messages": turns, "max_tokens": 1 + k % 17, "seed": k, "temperature": k % 2, "stream": stream,
            "model": ("m", "m:one", "m:two")[k % 3]}
    if k % 5 == 0:
        body["logprobs"], body["top_logprobs"] = True, k % 3
    if k % 7 == 0:
        body["stop"] = ["e", "zz"]
    if k % 11 == 0:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
    return k, body


def text_of(data, stream):
    if not stream:
        return json.loads(data)["choices"][0]["message"]["content"]
    frames = [f[6:] for f in data.decode().split("\n\n") if f.startswith("data: ")]
    assert frames[-1] == "[DONE]", data[-200:]
    return "".join(c["delta"].get("content") or "" for f in frames[:-1] for c in json.loads(f)["choices"])


def ask(connection, rng):
    stream = rng.random() < 0.5
    k, body = request(rng, stream)
    for _ in range(200):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = connection.getresponse()
        data = r.read()
        if r.status != 429:
            break
        time.sleep(0.02)
    assert r.status == 200, (r.status, data[:200])
    text = text_of(data, stream)
    with lock:
        first = answers.setdefault(k, text)
    assert text == first, (k, text, first)


def vanish(rng):
    """Leaves after a while, politely or with a reset, at any place of request or answer."""
    _, body = request(rng, rng.random() < 0.5)
    body["max_tokens"] = 200
    raw = json.dumps(body).encode()
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw
    with socket.create_connection(ADDRESS, timeout=20) as s:
        s.sendall(raw[:rng.randrange(len(raw))] if rng.random() < 0.3 else raw)
        time.sleep(rng.random() * 0.03)
        if rng.random() < 0.3:
            s.settimeout(0.02)
            try:
                s.recv(100)
            except OSError:
                pass
        if rng.random() < 0.5:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def expect(status, body, length=None):
    c = http.client.HTTPConnection(*ADDRESS, timeout=60)
    try:
        c.putrequest("POST", "/v1/chat/completions")
        c.putheader("Content-Length", str(length or len(body)))
        c.endheaders(body)
        r = c.getresponse()
        assert r.status == status, (r.status, status)
        assert "error" in json.loads(r.read())
    finally:
        c.close()


def client(number):
    global done
    rng = random.Random(number)
    connection = http.client.HTTPConnection(*ADDRESS, timeout=300)
    while True:
        with lock:
            if done >= TOTAL:
                break
            done += 1
            if done % (TOTAL // 5) == 0:
                rss[done] = memory()
        kind = rng.choices(("ask", "vanish", "large", "nonsense"), (70, 20, 5, 5))[0]
        try:
            if kind == "ask":
                ask(connection, rng)
            elif kind == "vanish":
                vanish(rng)
            elif kind == "large":
                expect(413, b"", 1 << 30)
            else:
                expect(400, rng.choice((b"{", b"[]", b'{"messages":7}', b'{"messages":[],"n":0}', b"\xff\xfe")))
        except Exception as e:  # whatever it is, the run goes on and tells
            with lock:
                faults.append((kind, repr(e)[:300]))
            connection.close()
        with lock:
            kinds[kind] = kinds.get(kind, 0) + 1
    connection.close()


def idle():
    c = http.client.HTTPConnection(*ADDRESS, timeout=60)
    c.request("GET", "/metrics")
    text = c.getresponse().read().decode()
    c.close()
    return "cart_requests_running 0\n" in text and "cart_requests_waiting 0\n" in text


before = descriptors()
threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
for t in threads:
    t.start()
for t in threads:
    t.join()
deadline = time.time() + 30
while not idle() and time.time() < deadline:
    time.sleep(0.1)
time.sleep(1)
after = descriptors()
# At the same load, and when all is over.
early, late = rss.get(TOTAL // 5, 0), max(rss.get(TOTAL, 0), memory())
growth = (late - early) / early if early else 0
# Pools and pages fill during the first thousands of requests; a sanitizer keeps what is freed.
steady = TOTAL >= 10000 and os.environ.get("CART_SANITIZED") != "1"
checks = [
    (not faults, f"{TOTAL} requests of {CLIENTS} clients: {kinds}, {len(faults)} faults"),
    (idle(), "nothing runs or waits afterwards"),
    (after <= before + 2, f"descriptors: {before} before, {after} after"),
    (growth <= 0.02 or not steady, f"anonymous memory: {early} KiB after a fifth, {late} KiB at the end "
                                   f"({100 * growth:+.1f} %{'' if steady else ', too short a run to judge'})"),
]
for i, (ok, what) in enumerate(checks, 1):
    print(f"{'ok' if ok else 'not ok'} {i} - {what}")
print("# KiB after each fifth:", *(rss[k] for k in sorted(rss)))
for kind, what in faults[:10]:
    print(f"# {kind}: {what}")
print(f"1..{len(checks)}")
sys.exit(0 if all(ok for ok, _ in checks) else 1)
