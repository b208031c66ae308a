"""Get JSON that follows a schema, from a model of any size.

Run `make serve`. In a second terminal, run:
.venv/bin/python -m pip install openai
.venv/bin/python examples/04_structured_output.py
"""

import os
import sys

from openai import APIConnectionError, OpenAI
from pydantic import BaseModel, Field


class City(BaseModel):
    # Small models may never end a text without a limit.
    name: str = Field(max_length=30)
    country: str = Field(max_length=30)


url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
key = os.environ.get("OPENAI_API_KEY", "none")

with OpenAI(base_url=url, api_key=key) as client:
    try:
        model = client.models.list().data[0].id
    except APIConnectionError:
        sys.exit(f"No server answers at {url}. To start one, run: make serve")
    answer = client.responses.parse(
        model=model, input="Name the capital of Italy.", text_format=City, temperature=0
    )
    print(answer.output_parsed)
