"""Let the model call one of your functions, and return the result to it.

Run: make serve, and beside it: pip install openai && python examples/03_function_tool.py
"""

import json
import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

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

with OpenAI(base_url=url, api_key="none") as client:
    model = client.models.list().data[0].id
    asked = client.responses.create(
        model=model,
        input="What is the weather in Rome?",
        tools=[WEATHER],
        tool_choice="required",  # small models often need it
        parallel_tool_calls=False,
    )
    call = next(item for item in asked.output if item.type == "function_call")
    print("called with", json.loads(call.arguments))
    answer = client.responses.create(
        model=model,
        previous_response_id=asked.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 22 C"}],
        max_output_tokens=40,
    )
    print(answer.output_text)
