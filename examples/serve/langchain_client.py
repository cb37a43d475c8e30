#!/usr/bin/env python3
"""langchain_client.py URL MODEL [CARTRIDGE...]: cart-serve with LangChain (pip install langchain-openai)."""
import sys

from langchain_openai import ChatOpenAI

url, model, cartridges = sys.argv[1], sys.argv[2], sys.argv[3:]
llm = ChatOpenAI(base_url=url + "/v1", api_key="unused", model=model, temperature=0, max_tokens=64,
                 extra_body={"cartridges": cartridges} if cartridges else None)

print(llm.invoke("What is this about?").content)
for piece in llm.stream("Say more."):
    print(piece.content, end="", flush=True)
print()

schema = {"title": "Answer", "type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"],
          "additionalProperties": False}
print(llm.with_structured_output(schema, method="json_schema").invoke("Is the sky blue?"))
