#!/usr/bin/env python3
"""serve_rates.py NAME=URL[,MODEL[,prompt|none]]...: generated tokens a second of running servers in one run, for 1, 4 and
16 clients whose requests share a context of about 512 tokens. URL is http://HOST:PORT. prompt (the default) sends the
context as a system message; none leaves it out, for a server whose MODEL is a cartridge of that context. The servers take
turns, three passes each, of which the best counts; each pass asks new questions, so that what is reused is the context
alone. Prints one table; the first server is 1.00."""
import concurrent.futures
import http.client
import json
import re
import signal
import sys
import time

CONTEXT = " ".join(f"Item {i} of the list is kept in drawer {i * 7 % 31}." for i in range(36))
TOKENS = 32
ROUNDS = {1: 4, 4: 12, 16: 32}
FAILURES = (OSError, http.client.HTTPException, ValueError, KeyError)


def ask(address, model, context, question):
    c = http.client.HTTPConnection(*address, timeout=600)
    messages = [{"role": "user", "content": question}]
    if context:
        messages.insert(0, {"role": "system", "content": CONTEXT})
    body = {"model": model, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    data = json.loads(r.read())
    c.close()
    if r.status != 200:
        raise ValueError(f"expected status 200, found {r.status}: {data}")
    return data["usage"]["completion_tokens"]


def measure(server, clients, number):
    address, model, context = server
    questions = [f"Pass {number}: where is item {i}?" for i in range(ROUNDS[clients])]
    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        tokens = sum(pool.map(lambda q: ask(address, model, context, q), questions))
    return tokens / (time.time() - start)


def refuse(message):
    print(f"serve_rates.py: {message}; -h tells more", file=sys.stderr)
    sys.exit(2)


def parse(text):
    m = re.fullmatch(r"([^=]+)=(?:http://)?([^:/,]+):([0-9]{1,5})/?(?:,([^,]+)(?:,(prompt|none))?)?", text)
    if not m or not 0 < int(m[3]) < 65536:
        refuse(f"expected NAME=http://HOST:PORT[,MODEL[,prompt|none]], found '{text}'")
    return m[1], ((m[2], int(m[3])), m[4] or "m", m[5] != "none")


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return
    if not sys.argv[1:]:
        refuse("expected NAME=URL, found none")
    servers = dict(parse(a) for a in sys.argv[1:])
    for name, server in servers.items():
        try:
            ask(*server, "Warm up.")
        except FAILURES as e:
            sys.exit(f"serve_rates.py: {name}: {e!r}" if not str(e) else f"serve_rates.py: {name}: {e}")
    number = 0
    print(f"{'clients':>8}" + "".join(f"{name:>24}" for name in servers))
    for clients in ROUNDS:
        best = {}
        # The servers take turns, so that a busy machine is busy for all of them.
        for _ in range(3):
            for name, server in servers.items():
                number += 1
                best[name] = max(best.get(name, 0.0), measure(server, clients, number))
        first = next(iter(best.values()))
        print(f"{clients:>8}" + "".join(f"{f'{v:.1f} t/s  {v / first:.2f}':>24}" for v in best.values()), flush=True)


# At once: the interpreter would wait for the requests under way.
signal.signal(signal.SIGINT, signal.SIG_DFL)
try:
    main()
except FAILURES as e:
    sys.exit(f"serve_rates.py: {e!r}")
