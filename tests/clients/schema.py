#!/usr/bin/env python3
"""schema.py SPEC: the OpenAPI description with models that the server under test has, on standard output. Without that
nearly every generated request ends at its unknown model. Requests for streams are left to other tests: their answers
are no JSON."""
import json
import sys


def walk(v, key=None):
    if isinstance(v, list):
        return [walk(x) for x in v]
    if not isinstance(v, dict):
        return v
    v = {k: walk(x, k) for k, x in v.items()}
    properties = v.get("properties")
    if isinstance(properties, dict) and ("messages" in properties or "prompt" in properties or "input" in properties):
        if "model" in properties:
            properties["model"] = {"enum": ["m", "m:one"]}
        if "stream" in properties:
            properties["stream"] = {"enum": [False]}
            properties.pop("stream_options", None)
    return v


spec = json.load(open(sys.argv[1], encoding="utf-8"))
spec["paths"]["/chat/completions"].pop("get", None)  # lists stored answers: nothing is stored
# The description knows no base64, which every current client asks for.
embedding = spec["components"]["schemas"]["Embedding"]["properties"]
embedding["embedding"] = {"anyOf": [embedding["embedding"], {"type": "string"}]}
# The first token of a prompt has no log-probability: null, in what OpenAI sends as well.
choice = spec["components"]["schemas"]["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
for one in choice["logprobs"]["anyOf"]:
    for name in ("token_logprobs", "top_logprobs"):
        if "properties" in one:
            items = one["properties"][name]
            items["items"] = {"anyOf": [items["items"], {"type": "null"}]}
json.dump(walk(spec), sys.stdout)
