"""Let the model call one of your functions, and return the result to it.

Run `make serve`. In a second terminal, run:
.venv/bin/python -m pip install openai
.venv/bin/python examples/03_function_tool.py
"""

import json
import os
import sys

from openai import APIConnectionError, OpenAI

url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
key = os.environ.get("OPENAI_API_KEY", "none")

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}

with OpenAI(base_url=url, api_key=key) as client:
    try:
        model = client.models.list().data[0].id
    except APIConnectionError:
        sys.exit(f"No server answers at {url}. To start one, run: make serve")
    asked = client.responses.create(
        model=model,
        input="What is the weather in Rome?",
        tools=[WEATHER],
        tool_choice="required",  # small models often call no function otherwise
        parallel_tool_calls=False,
    )
    call = next(item for item in asked.output if item.type == "function_call")
    print("called with", json.loads(call.arguments))
    answer = client.responses.create(
        model=model,
        previous_response_id=asked.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 22 C"}],
        instructions="Answer in one short sentence.",
        temperature=0,  # with 0, small models keep to the facts
        max_output_tokens=40,
    )
    print(answer.output_text)
