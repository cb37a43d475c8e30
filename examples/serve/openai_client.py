#!/usr/bin/env python3
"""openai_client.py [URL]: cart-serve with the openai package (pip install openai)."""
import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8765"
client = OpenAI(base_url=url + "/v1", api_key="unused")

models = [m.id for m in client.models.list()]
print("models:", ", ".join(models))

# A cartridge is a model of its own ...
answer = client.chat.completions.create(
    model=models[-1],
    messages=[{"role": "user", "content": "What is this about?"}],
    max_tokens=64,
    temperature=0,
)
print(answer.choices[0].message.content)
print("rows before the prompt:", answer.usage.model_extra["cartridge_tokens"])

# ... or some of them are named in a field, and stand one behind the other.
names = [m.split(":", 1)[1] for m in models if ":" in m]
stream = client.chat.completions.create(
    model=models[0],
    messages=[{"role": "user", "content": "Say more."}],
    max_tokens=64,
    temperature=0,
    stream=True,
    extra_body={"cartridges": names},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
