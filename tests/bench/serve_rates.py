#!/usr/bin/env python3
"""serve_rates.py NAME=URL[,MODEL[,prompt|none]]...: answers a second of running servers in one run, for 1, 4 and 16
clients whose requests share a context of about 512 tokens. prompt (the default) sends the context as a system message;
none leaves it out, for a server whose MODEL is a cartridge of that context. Each pass asks new questions, so that what is
reused is the context alone. Prints one table; the first server is 1.00."""
import concurrent.futures
import http.client
import json
import sys
import time

CONTEXT = " ".join(f"Item {i} of the list is kept in drawer {i * 7 % 31}." for i in range(36))
TOKENS = 32
ROUNDS = {1: 4, 4: 12, 16: 32}


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
    assert r.status == 200, data
    return data["usage"]["completion_tokens"]


def measure(server, clients, number):
    address, model, context = server
    questions = [f"Pass {number}: where is item {i}?" for i in range(ROUNDS[clients])]
    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        tokens = sum(pool.map(lambda q: ask(address, model, context, q), questions))
    return tokens / (time.time() - start)


def parse(text):
    name, rest = text.split("=", 1)
    url, model, how = (rest.split(",") + ["m", "prompt"][rest.count(","):])[:3]
    host, port = url.removeprefix("http://").split(":")
    return name, ((host, int(port)), model, how == "prompt")


servers = dict(parse(a) for a in sys.argv[1:])
for server in servers.values():
    ask(*server, "Warm up.")
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
