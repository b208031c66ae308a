"""Continue an answer twice in two directions, and keep a conversation on the server.

Run `make serve`. In a second terminal, run:
.venv/bin/python -m pip install openai
.venv/bin/python examples/05_conversation.py
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
    first = client.responses.create(
        model=model, input="Name the capital of France.", temperature=0, max_output_tokens=20
    )
    print(first.output_text)
    for question in ("And of Italy?", "And of Spain?"):
        turn = client.responses.create(
            model=model,
            input=question,
            previous_response_id=first.id,
            temperature=0,
            max_output_tokens=20,
        )
        print(question, "→", turn.output_text)
    talk = client.conversations.create()
    for said in ("Hello.", "What did I say first?"):
        client.responses.create(model=model, input=said, conversation=talk.id, max_output_tokens=20)
    print(len(list(client.conversations.items.list(talk.id))), "items in the conversation")
