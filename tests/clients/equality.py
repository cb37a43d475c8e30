#!/usr/bin/env python3
"""equality.py CONVERSATIONS [CLIENTS [TYPE]]: conversations of two turns over HTTP, many at once, on a server with room
for few of them: beginnings shared by families, mixed cartridges, sampling, penalties, stops, schemas, streams that are
left. Each answer (text, finish reason, log-probabilities, counts) must equal that of a process started for the one
request, with one thread, one slot and nothing guessed ahead. TYPE: of the rows (f32). Needs CART_MODEL, cart-serve on
the PATH, and one.safetensors and two.safetensors in the current folder. Prints TAP."""
import concurrent.futures
import http.client
import json
import os
import random
import re
import subprocess
import sys

TOTAL = int(sys.argv[1])
CLIENTS = int(sys.argv[2]) if len(sys.argv) > 2 else 12
TYPE = sys.argv[3] if len(sys.argv) > 3 else "f32"
CARTRIDGES = ["-c", "one=one.safetensors", "-c", "two=two.safetensors"]
BUSY = ["--ctx", "300", "--slots", "6", "--kv", TYPE + ":1200", "--queue", "256", "-j", "2"]
PLAIN = ["--ctx", "300", "--slots", "1", "--draft", "0", "-j", "1", "--kv", TYPE]
WORDS = "rain drum lamp copper seven winter bread letter north glass".split()


class Server:
    def __init__(self, options):
        self.process = subprocess.Popen(["cart-serve", "-m", os.environ["CART_MODEL"], "--name", "m", "--port", "0",
                                         *CARTRIDGES, *options], stderr=subprocess.PIPE, text=True)
        self.address = None
        for line in self.process.stderr:
            found = re.search(r"ready on http://([^:]+):(\d+)", line)
            if found:
                self.address = (found[1], int(found[2]))
                break
        assert self.address, "no server"
        # A pipe that nobody reads would hold the server up.
        self.drain = concurrent.futures.ThreadPoolExecutor(1)
        self.drain.submit(self.process.stderr.read)

    def close(self):
        self.process.terminate()
        status = self.process.wait(30)
        self.drain.shutdown()
        assert status == 0, f"exit status {status}"


def first_turn(i):
    """What conversation i asks first, and after how many pieces of its stream it leaves, if it does."""
    rng = random.Random(i)
    family = rng.randrange(6)
    shared = " ".join(random.Random(1000 + family).choices(WORDS, k=4 + 5 * family))
    body = {"messages": [{"role": "user", "content": f"{shared} {rng.choice(WORDS)} {rng.randrange(90)}"}],
            "max_tokens": rng.randint(1, 24), "seed": i, "stream": rng.random() < 0.6,
            "temperature": rng.choice([0, 0, 0.5, 1.1]), "top_p": rng.choice([1, 0.9])}
    body |= rng.choice([{"model": "m"}, {"model": "m:one"}, {"model": "m:two"},
                        {"model": "m", "cartridges": ["two", "one"]}])
    if rng.random() < 0.3:
        body |= {"frequency_penalty": 0.4, "presence_penalty": 0.3, "logit_bias": {str(rng.randrange(300)): 3.5}}
    if rng.random() < 0.3:
        body["stop"] = rng.choice([["e"], ["a", "th"], ["\n"]])
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": rng.randrange(6)}
    if rng.random() < 0.2 and not body["stream"]:
        body["n"] = 2
    if rng.random() < 0.1:
        body["response_format"] = {"type": "json_schema",
                                   "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    return body, rng.randint(1, 6) if body["stream"] and rng.random() < 0.25 else None


def collect(response, leave_after):
    """The answer of a stream, or its beginning: None stands for what had not come."""
    text, logprobs, finish, usage, pieces = "", [], None, None, 0
    for line in response:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        frame = json.loads(line[6:])
        usage = frame.get("usage") or usage
        for choice in frame["choices"]:
            text += choice["delta"].get("content") or ""
            logprobs += (choice.get("logprobs") or {}).get("content") or []
            finish = choice["finish_reason"] or finish
        pieces += 1
        if pieces == leave_after:
            return [(text, logprobs, None)], None
    return [(text, logprobs, finish)], usage


def ask(address, body, leave_after=None):
    connection = http.client.HTTPConnection(*address, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise AssertionError((response.status, response.read()[:300]))
    if body["stream"]:
        choices, usage = collect(response, leave_after)
    else:
        answer = json.loads(response.read())
        usage = answer["usage"]
        choices = [(c["message"]["content"] or "", (c.get("logprobs") or {}).get("content") or [], c["finish_reason"])
                   for c in answer["choices"]]
    connection.close()
    counts = usage and (usage["prompt_tokens"], usage["completion_tokens"])
    return choices, counts, usage and usage["prompt_tokens_details"]["cached_tokens"]


def converse(address, i):
    body, leave_after = first_turn(i)
    turns = [(body, *ask(address, body, leave_after))]
    said = turns[0][1][0][0]
    body = dict(body, messages=body["messages"] + [{"role": "assistant", "content": said},
                                                    {"role": "user", "content": WORDS[i % len(WORDS)]}])
    turns.append((body, *ask(address, body)))
    return turns


def fresh(body):
    server = Server(PLAIN)
    choices, counts, _ = ask(server.address, body)
    server.close()
    return choices, counts


def same(got, want):
    if got[1] is None:  # left: what came is the beginning of the answer
        text, logprobs, _ = got[0][0]
        return want[0][0][0].startswith(text) and want[0][0][1][:len(logprobs)] == logprobs
    return got == want


def get(address, path):
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


busy = Server(BUSY)
with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
    talks = list(pool.map(lambda i: converse(busy.address, i), range(TOTAL)))
metrics = dict(re.findall(r"^cart_(\w+) (\d+)$", get(busy.address, "/metrics"), re.M))
busy.close()

turns = [(i, k, *turn) for i, talk in enumerate(talks) for k, turn in enumerate(talk)]
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    wanted = list(pool.map(lambda turn: fresh(turn[2]), turns))
faults = []
for (i, k, body, choices, counts, _), want in zip(turns, wanted):
    if not same((choices, counts), want):
        faults.append(f"# conversation {i} turn {k}: {json.dumps(body)}\n#   got {choices}\n#   fresh {want[0]}")
left = sum(counts is None for _, _, _, _, counts, _ in turns)
cached = sum(c or 0 for *_, c in turns)
print("\n".join(faults[:5]))
print(f"# {len(turns)} answers, {left} left, {cached} prompt tokens cached; "
      + ", ".join(f"{name} {value}" for name, value in sorted(metrics.items()) if "evict" in name or "draft" in name))
for number, (good, what) in enumerate([(not faults, "every answer equals that of a process of its own"),
                                       (cached > 0 and left > 0, "rows were found again, and streams left")], 1):
    print(f"{'ok' if good else 'not ok'} {number} - {what}")
print("1..2")
sys.exit(bool(faults) or not (cached and left))
