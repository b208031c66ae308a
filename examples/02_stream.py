"""Read an answer while it is written.

Run: make serve, and beside it: pip install openai && python examples/02_stream.py
"""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

with OpenAI(base_url=url, api_key="none") as client:
    model = client.models.list().data[0].id
    stream = client.responses.create(
        model=model, input="Name three rivers.", max_output_tokens=40, stream=True
    )
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    print()
