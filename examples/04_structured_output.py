"""Get JSON that follows a schema, from a model of any size.

Run: make serve, and beside it: pip install openai && python examples/04_structured_output.py
"""

import sys

from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    name: str
    country: str


url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

with OpenAI(base_url=url, api_key="none") as client:
    model = client.models.list().data[0].id
    answer = client.responses.parse(model=model, input="Name a city.", text_format=City)
    print(answer.output_parsed)
