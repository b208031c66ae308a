"""``decisions``: what 20 questions about a text cost, and how well the default model's
probabilities fit a small set of messages to a shop, which was made for this purpose."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from antiphon.config.model import DEFAULT_MODEL

from .default_server import random_text, serving
from .peers.servers import PeerProcess
from .table import Line

_TEAMS = {
    "shipping": "parcels and deliveries",
    "billing": "payments and invoices",
    "account": "log-in and profiles",
    "product": "questions about articles",
    "praise": "thanks and compliments",
}
#: The questions of the set. Each has its options, as an answer names them.
_QUESTIONS: Mapping[str, Mapping[str, Any]] = {
    "angry": {"type": "predicate", "instructions": "The customer is angry."},
    "positive": {"type": "predicate", "instructions": "The text is positive."},
    "mood": {
        "type": "choice",
        "instructions": "What is the sentiment of the text?",
        "choices": [{"value": "positive"}, {"value": "negative"}],
    },
    "team": {
        "type": "choice",
        "instructions": "Which team should answer?",
        "choices": [{"value": name, "description": about} for name, about in _TEAMS.items()],
    },
    "urgency": {
        "type": "score",
        "instructions": "How urgent is it?",
        "levels": [{"label": "low"}, {"label": "mid"}, {"label": "high"}],
    },
}
#: Text; whether the writer is angry, whether the text is positive, the team, and how urgent it is.
#: None: people would not agree.
_SET: tuple[tuple[str, bool | None, bool | None, str | None, int | None], ...] = (
    ("My parcel never came. I want my money back now!", True, False, "shipping", 2),
    ("Thank you so much, the headphones came a day early.", False, True, "praise", 0),
    ("You charged my credit card twice for the same order.", None, False, "billing", 2),
    ("Will the blue jacket be back in stock some day? No hurry.", False, None, "product", 0),
    ("I cannot log in although I reset my password three times.", None, False, "account", 1),
    ("This is the worst shop ever. You are thieves and liars!", True, False, None, None),
    ("The invoice shows the wrong address. Please correct it.", False, None, "billing", 1),
    ("The driver left the package in the rain, all is wet.", None, False, "shipping", 1),
    ("I love this coffee machine, best purchase of the year!", False, True, "praise", 0),
    ("How many watts does the kettle have, is it made of steel?", False, None, "product", 0),
    ("Somebody is ordering things in my name right now!", None, False, "account", 2),
    ("Great service, friendly people, I will come back.", False, True, "praise", 0),
    ("Where is my order? It left the warehouse weeks ago.", None, False, "shipping", 1),
    ("Please change the e-mail address of my profile.", False, None, "account", 0),
    ("My refund is a month late. I am furious.", True, False, "billing", 2),
    ("The movie was boring; I fell asleep.", False, False, None, None),
    ("What a delightful evening! The food was excellent.", False, True, "praise", None),
    ("I hate you all. Never again will I buy anything here!", True, False, None, None),
)
_STATEMENTS = (
    "The customer is angry. The text is positive. The parcel was lost. The text mentions money. The"
    " text is about travel. Someone is ill. The text is a complaint. The customer wants a refund."
    " The text mentions a school. The text is a story. The text asks a question. The writer is"
    " polite. The writer is in a hurry. The text mentions food. It is summer. The text is about"
    " music. The text is long. The text mentions a river. The text mentions a friend. This is spam."
).split(". ")


def decisions() -> Iterator[Line]:
    """Run the measurements on a fresh server."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        yield from _cost(server)
        yield from _calibration(server)


def _cost(server: PeerProcess) -> Iterator[Line]:
    asked = [{"type": "predicate", "instructions": each} for each in _STATEMENTS]
    tokens, cpu = [0, 0], [0.0, 0.0]
    for turn in range(4):
        plain = {"input": random_text(1_450, turn), "max_output_tokens": 1, "store": False}
        decided = {"input": random_text(1_450, 100 + turn), "questions": asked}
        for at, (path, body) in enumerate((("responses", plain), ("decisions", decided))):
            start = server.cpu_s
            usage = _post(server, path, body)["usage"]
            cpu[at] += server.cpu_s - start
            tokens[at] += usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"]
    note = f"{tokens[0] // 4:,} and {tokens[1] // 4:,} tokens"
    yield Line(
        what="20 questions against one prompt: computed tokens",
        value=tokens[1] / tokens[0],
        unit="times",
        at_most=1.5,
        note=note,
    )
    yield Line(what="the same: CPU time", value=cpu[1] / cpu[0], unit="times", at_most=1.5)


def _calibration(server: PeerProcess) -> Iterator[Line]:
    found: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    for text, angry, positive, team, urgency in _SET:
        mood = None if positive is None else "positive" if positive else "negative"
        known = dict(zip(_QUESTIONS, (angry, positive, mood, team, urgency), strict=True))
        names = [name for name, right in known.items() if right is not None]
        body = {"input": text, "questions": [_QUESTIONS[name] for name in names]}
        answers = _post(server, "decisions", body)["answers"]
        for name, answer in zip(names, answers, strict=True):
            probabilities = _probabilities(answer)
            best = max(probabilities, key=lambda value: probabilities[value])
            found[name].append((probabilities[best], best == known[name]))
    for name, pairs in found.items():
        right = 100 * sum(is_right for _, is_right in pairs) / len(pairs)
        sure = 100 * sum(probability for probability, _ in pairs) / len(pairs)
        note = f"of {len(pairs)}; mean probability of the likeliest option {sure:.0f} %"
        yield Line(what=f"right answers, {name}", value=right, unit="%", note=note)


def _probabilities(answer: Mapping[str, Any]) -> dict[Any, float]:
    if answer["type"] == "predicate":
        return {True: answer["probability"], False: 1 - answer["probability"]}
    return {each["value"]: each["probability"] for each in answer["probabilities"]}


def _post(server: PeerProcess, path: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/{path}",
        json.dumps({"model": DEFAULT_MODEL, **body}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)
