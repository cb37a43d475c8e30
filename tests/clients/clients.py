#!/usr/bin/env python3
"""clients.py URL: the clients that people use, against a running server whose base model is called m, with the
cartridges one and two; one TAP line each. The model is small and random: what is checked is that requests are
understood and answers have the shape that each client expects."""
import concurrent.futures
import json
import os
import subprocess
import sys
import traceback

import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import OpenAI

URL = sys.argv[1]
BASE = URL + "/v1"
client = OpenAI(base_url=BASE, api_key="unused", max_retries=0, timeout=120)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "set_light",
        "description": "Switches a light.",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "attic"]}},
            "required": ["on", "room"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Answer",
    "type": "object",
    "properties": {"good": {"type": "boolean"}, "colour": {"enum": ["red", "blue"]}},
    "required": ["good", "colour"],
    "additionalProperties": False,
}
tests = []


def test(f):
    tests.append(f)
    return f


def chat(**more):
    return client.chat.completions.create(**{"model": "m", "messages": HELLO, "max_tokens": 8, "temperature": 0, **more})


@test
def openai_lists_models():
    ids = [m.id for m in client.models.list()]
    assert ids == ["m", "m:one", "m:two"], ids
    assert client.models.retrieve("m:one").id == "m:one"


@test
def openai_chats():
    r = chat()
    assert r.choices[0].message.role == "assistant" and r.choices[0].finish_reason in ("length", "stop")
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r._request_id


@test
def openai_streams_the_same_text():
    whole = chat().choices[0].message.content
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole, (text, whole)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8
    assert len({c.id for c in chunks}) == 1


@test
def openai_gets_logprobs():
    r = chat(logprobs=True, top_logprobs=3)
    entries = r.choices[0].logprobs.content
    assert len(entries) == 8 and all(len(e.top_logprobs) == 3 for e in entries)
    assert all(e.logprob <= 0 and bytes(e.bytes) for e in entries)
    assert b"".join(bytes(e.bytes) for e in entries).decode("utf-8", "replace") == r.choices[0].message.content


@test
def openai_gets_choices_and_seeds():
    a = chat(n=3, seed=7, temperature=1)
    b = chat(n=3, seed=7, temperature=1)
    texts = [c.message.content for c in a.choices]
    assert texts == [c.message.content for c in b.choices] and len(set(texts)) > 1
    assert a.system_fingerprint == b.system_fingerprint


@test
def openai_chooses_cartridges():
    bare, by_model = chat(), chat(model="m:one")
    by_field = chat(extra_body={"cartridges": ["one"]})
    both = chat(extra_body={"cartridges": ["one", "two"]})
    assert by_model.choices[0].message.content == by_field.choices[0].message.content
    assert [c["id"] for c in both.model_extra["cartridges"]] == ["one", "two"]
    assert by_model.usage.model_extra["cartridge_tokens"] == 16 and both.usage.model_extra["cartridge_tokens"] == 40
    assert bare.model_extra["cartridges"] == [] and by_field.model_extra["cartridge_selection"] == "request"
    assert len({bare.system_fingerprint, by_model.system_fingerprint, both.system_fingerprint}) == 3


@test
def openai_forces_a_tool_call():
    for choice in ({"type": "function", "function": {"name": "set_light"}}, "required"):
        r = chat(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, max_tokens=200)
        call = r.choices[0].message.tool_calls[0]
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "set_light" and call.id and r.choices[0].finish_reason == "tool_calls"
        assert isinstance(arguments["on"], bool) and arguments["room"] in ("hall", "attic")


@test
def openai_streams_a_tool_call():
    whole = chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200)
    name, arguments, n = "", "", 0
    for c in chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200, stream=True):
        for d in c.choices[0].delta.tool_calls or []:
            assert d.index == 0
            name += d.function.name or ""
            arguments += d.function.arguments or ""
            n += 1
    expected = whole.choices[0].message.tool_calls[0].function
    assert (name, arguments) == (expected.name, expected.arguments) and n > 2, (name, arguments, n)


@test
def openai_takes_a_tool_result():
    first = chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200).choices[0].message
    turns = HELLO + [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "done"}]
    assert chat(messages=turns, tools=[TOOL]).usage.prompt_tokens > 20


@test
def openai_parses_a_schema():
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
    for temperature in (0, 1):
        r = chat(response_format=form, max_tokens=200, temperature=temperature)
        v = json.loads(r.choices[0].message.content)
        assert isinstance(v["good"], bool) and v["colour"] in ("red", "blue") and len(v) == 2
    bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "pattern": "a+"}}}
    try:
        chat(response_format=bad)
        assert False
    except openai.BadRequestError as e:
        assert "pattern" in e.message


@test
def openai_completes():
    r = client.completions.create(model="m", prompt=["a", "b c"], max_tokens=3, echo=True, logprobs=2, temperature=0)
    assert len(r.choices) == 2 and r.choices[1].text.startswith("b c")
    lp = r.choices[1].logprobs
    assert lp.token_logprobs[0] is None and len(lp.tokens) == len(lp.text_offset) == len(lp.top_logprobs)
    again = client.completions.create(model="m", prompt=[[1, 2, 3]], max_tokens=2)
    assert again.usage.prompt_tokens == 3
    text = "".join(c.choices[0].text for c in client.completions.create(model="m", prompt="a", max_tokens=3,
                                                                        temperature=0, stream=True))
    assert "a" + text == r.choices[0].text


@test
def openai_embeds():
    r = client.embeddings.create(model="m", input=["one", "two"])  # base64 on the wire
    f = client.embeddings.create(model="m", input=["one", "two"], encoding_format="float")
    assert len(r.data) == 2 and all(abs(sum(x * x for x in d.embedding) - 1) < 1e-4 for d in r.data)
    assert max(abs(a - b) for a, b in zip(r.data[0].embedding, f.data[0].embedding)) < 1e-6


@test
def openai_raises_by_class():
    for error, more in ((openai.BadRequestError, {"temperature": 9}), (openai.NotFoundError, {"model": "nobody"}),
                        (openai.NotFoundError, {"extra_body": {"cartridges": ["none"]}}),
                        (openai.BadRequestError, {"messages": [{"role": "user", "content": "x " * 5000}]})):
        try:
            chat(**more)
            assert False, error
        except error as e:
            assert e.code and e.body["message"], e
    try:
        chat(messages=[{"role": "user", "content": "x " * 5000}])
    except openai.BadRequestError as e:
        assert e.code == "context_length_exceeded" and "maximum context length" in e.message


@test
def openai_stops():
    whole = chat(max_tokens=24).choices[0].message.content
    stop = whole[5:8]
    cut = chat(max_tokens=24, stop=[stop]).choices[0]
    assert cut.message.content == whole[:whole.index(stop)] and cut.finish_reason == "stop"
    pieces = [c.choices[0].delta.content or "" for c in chat(max_tokens=24, stop=[stop], stream=True)]
    assert "".join(pieces) == cut.message.content


@test
def openai_many_at_once():
    alone = chat().choices[0].message.content
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: chat().choices[0].message.content, range(24)))
    assert set(answers) == {alone}


@test
def langchain_invokes_streams_and_embeds():
    llm = ChatOpenAI(base_url=BASE, api_key="x", model="m", temperature=0, max_tokens=8, max_retries=0)
    answer = llm.invoke([HumanMessage("hello")])
    assert answer.content == chat().choices[0].message.content
    assert answer.usage_metadata["input_token_details"]["cache_read"] <= answer.usage_metadata["input_tokens"]
    assert "".join(c.content for c in llm.stream("hello")) == answer.content
    vectors = OpenAIEmbeddings(base_url=BASE, api_key="x", model="m", check_embedding_ctx_length=False)
    assert len(vectors.embed_query("hello")) > 8


@test
def langchain_structures_and_calls_tools():
    llm = ChatOpenAI(base_url=BASE, api_key="x", model="m", temperature=0, max_tokens=200, max_retries=0)
    v = llm.with_structured_output(SCHEMA, method="json_schema").invoke("hello")
    assert set(v) == {"good", "colour"}
    call = llm.bind_tools([TOOL], tool_choice="set_light").invoke("hello").tool_calls[0]
    assert call["name"] == "set_light" and call["args"]["room"] in ("hall", "attic")


@test
def litellm_completes():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    r = litellm.completion(model="openai/m", api_base=BASE, api_key="x", messages=HELLO, max_tokens=8, temperature=0)
    assert r.choices[0].message.content == chat().choices[0].message.content


def curl(*args, **more):
    return subprocess.run(["curl", "-s", "-m", "60", *args], capture_output=True, text=True, check=True, **more).stdout


@test
def curl_keeps_a_connection():
    out = curl("-w", "%{num_connects}\n", "-o", os.devnull, URL + "/health", "-o", os.devnull, URL + "/health")
    assert out.split() == ["1", "0"], out


@test
def curl_uploads_in_chunks():
    body = json.dumps({"model": "m", "messages": HELLO, "max_tokens": 2})
    out = curl("-H", "Transfer-Encoding: chunked", "-H", "Content-Type: application/json", "--data-binary", "@-",
               BASE + "/chat/completions", input=body)
    assert json.loads(out)["object"] == "chat.completion"


@test
def curl_switches_thinking():
    def prompt(**more):
        return json.loads(curl("-d", json.dumps({"messages": HELLO, **more}), URL + "/apply-template"))["prompt"]

    empty = "<think>\n\n</think>\n\n"
    assert prompt().endswith(empty)
    assert not prompt(chat_template_kwargs={"enable_thinking": True}).endswith(empty)
    assert prompt(reasoning_effort="none") == prompt() != prompt(reasoning_effort="high")


@test
def curl_waits_for_leave_to_upload():
    out = curl("-o", os.devnull, "-w", "%{http_code} %{size_upload}", "-H", "Expect: 100-continue", "--data-binary",
               "@-", BASE + "/chat/completions", input="x" * (20 << 20))
    assert out == "413 0", out


def main():
    bad = 0
    for i, f in enumerate(tests, 1):
        try:
            f()
            print(f"ok {i} - {f.__name__.replace('_', ' ')}", flush=True)
        except Exception:  # a test that fails in any way is one line of the report
            bad += 1
            print(f"not ok {i} - {f.__name__.replace('_', ' ')}", flush=True)
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), end="", flush=True)
    print(f"1..{len(tests)}")
    sys.exit(bad > 0)


main()
