"""Continue an answer twice in two directions, and keep a conversation on the server.

Run: make serve, and beside it: pip install openai && python examples/05_conversation.py
"""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

with OpenAI(base_url=url, api_key="none") as client:
    model = client.models.list().data[0].id
    first = client.responses.create(model=model, input="My name is Ada.", max_output_tokens=20)
    for question in ("What is my name?", "Spell my name."):
        turn = client.responses.create(
            model=model,
            input=question,
            previous_response_id=first.id,
            max_output_tokens=20,
        )
        print(question, "→", turn.output_text)
    talk = client.conversations.create()
    for said in ("Hello.", "What did I say first?"):
        client.responses.create(model=model, input=said, conversation=talk.id, max_output_tokens=20)
    print(len(list(client.conversations.items.list(talk.id))), "items in the conversation")
