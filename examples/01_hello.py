"""Ask the default model one question.

Run: make serve, and beside it: pip install openai && python examples/01_hello.py
"""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

with OpenAI(base_url=url, api_key="none") as client:
    model = client.models.list().data[0].id
    answer = client.responses.create(model=model, input="Say hello.", max_output_tokens=30)
    print(answer.output_text)
