"""Read an answer while it is written.

Run `make serve`. In a second terminal, run:
.venv/bin/python -m pip install openai
.venv/bin/python examples/02_stream.py
"""

import os
import sys

from openai import APIConnectionError, OpenAI

url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
key = os.environ.get("OPENAI_API_KEY", "none")

with OpenAI(base_url=url, api_key=key) as client:
    try:
        model = client.models.list().data[0].id
    except APIConnectionError:
        sys.exit(f"No server answers at {url}. To start one, run: make serve")
    stream = client.responses.create(
        model=model, input="Write one sentence about the sea.", max_output_tokens=60, stream=True
    )
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    print()
