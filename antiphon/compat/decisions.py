"""Decisions: questions about a shared input, answered with probabilities.

Each question becomes a message after the shared input, which names the options. The probability
that the model answers with the text of an option is that of the option (``option_shares``). Models
prefer some positions in a list, so each question is asked in two orders of the options, and the
probabilities are averaged. The options come last, so that both orders share the rest of the prompt.

The fields follow the types of the ``openai`` SDK 3.57.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidRequest, invalid_field, unsupported_parameter
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import (
    empty_value,
    invalid_type,
    json_type_name,
)
from antiphon.wire.parsing.fields import (
    convert,
    drop_nulls,
    known_fields,
    read_array,
    read_object,
    read_tag,
    require,
)
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.parsing.requests import read_create
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import Response, Usage

from .completion_response import text_parts
from .error_paths import ErrorPaths
from .option_shares import OptionShares
from .translated_request import TranslatedRequest

#: Engines report the probabilities of at most 20 tokens.
_MAX_TOKENS = 20
_MAX_QUESTIONS = 400
_MAX_JSON_BYTES = 256 * 1024
_ITEM_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)


class Choice(Struct, frozen=True, kw_only=True):
    """An option of a choice. A string and a boolean with the same text are distinct."""

    value: Annotated[str, Meta(max_length=4096)] | bool
    description: str | None = None


class Level(Struct, frozen=True, kw_only=True):
    """A level of a score. Levels are numbered from 0 in the given order."""

    label: Annotated[str, Meta(max_length=4096)]
    description: str | None = None


class Predicate(Struct, frozen=True, kw_only=True, tag="predicate"):
    """How likely is it that a statement about the input is true?"""

    instructions: str
    name: str | None = None


class ChoiceQuestion(Struct, frozen=True, kw_only=True, tag="choice"):
    """Which of the options fits the input?"""

    instructions: str
    choices: Annotated[tuple[Choice, ...], Meta(min_length=2, max_length=255)]
    name: str | None = None


class ScoreQuestion(Struct, frozen=True, kw_only=True, tag="score"):
    """Which level does the input have?"""

    instructions: str
    levels: Annotated[tuple[Level, ...], Meta(min_length=2, max_length=255)]
    name: str | None = None


Question = Predicate | ChoiceQuestion | ScoreQuestion
_QUESTIONS: Mapping[str, type[Any]] = {
    "predicate": Predicate,
    "choice": ChoiceQuestion,
    "score": ScoreQuestion,
}


class DecisionBody(Struct, frozen=True, kw_only=True):
    """The body of a request. ``input``: a text, or messages and tool calls."""

    model: str
    input: str | tuple[JsonObject, ...]
    questions: Annotated[tuple[Question, ...], Meta(min_length=1, max_length=_MAX_QUESTIONS)]
    prompt_cache_key: str | None = None
    prompt_cache_options: JsonObject | None = None
    safety_identifier: str | None = None


class PredicateAnswer(Struct, frozen=True, kw_only=True, tag="predicate"):
    name: str | None
    probability: float


class ChoiceProbability(Struct, frozen=True):
    value: str | bool
    probability: float


class ChoiceAnswer(Struct, frozen=True, kw_only=True, tag="choice"):
    """``confidence``: 1 if one choice is certain, and 0 if all are equally likely."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: tuple[ChoiceProbability, ...]


class LevelProbability(Struct, frozen=True):
    label: str
    value: int
    probability: float


class ScoreAnswer(Struct, frozen=True, kw_only=True, tag="score"):
    """``score``: the expected value of the level. ``confidence``: as for a choice."""

    name: str | None
    score: float
    confidence: float
    probabilities: tuple[LevelProbability, ...]


class RefusalAnswer(Struct, frozen=True, kw_only=True, tag="refusal"):
    """The model chose none of the options."""

    name: str | None


DecisionAnswer = PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer


class DecisionList(Struct, frozen=True, kw_only=True):
    """The answers, in the order of the questions."""

    model: str
    answers: tuple[DecisionAnswer, ...]
    usage: Usage


class DecisionsRequest(TranslatedRequest, frozen=True, kw_only=True):
    """A parsed request: two requests of the Responses API for each question, one for each order of
    the options."""

    questions: tuple[Question, ...]

    def options(self, number: int) -> OptionShares:
        """Return the options of ``requests[number]``. Their shares are not known yet."""
        texts = _options(self.questions[number // 2])
        return OptionShares(texts[::-1] if number % 2 else texts)

    def after(self, number: int, beginning: str) -> CreateResponse:
        """Return ``requests[number]`` with the beginning of an answer, which the model
        continues."""
        request = self.requests[number]
        if not beginning:
            return request
        answer = it.Message(
            role="assistant", status="incomplete", content=(it.OutputText(text=beginning),)
        )
        return msgspec.structs.replace(request, input=(*(request.input or ()), answer))


# --- the request ---------------------------------------------------------------------------------


def parse_decisions(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> DecisionsRequest:
    """Parse a request body and translate it. Raises ``InvalidRequest`` with the path of the field
    as the client wrote it."""
    raw = drop_nulls(parse_json_object(body, limits))
    require(raw, "", "model", "input", "questions")
    questions = read_array(raw["questions"], "questions", _MAX_QUESTIONS)
    if not questions:
        raise empty_value("questions", questions)
    parsed = tuple(_question(each, f"questions[{at}]") for at, each in enumerate(questions))
    shared: JsonObject = {
        "model": raw["model"],
        "store": False,
        "temperature": 0,
        "max_output_tokens": 1,
        "reasoning": {"effort": "none"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": _MAX_TOKENS,
        **{
            name: raw[name]
            for name in ("prompt_cache_key", "prompt_cache_options", "safety_identifier")
            if name in raw
        },
    }
    paths = ErrorPaths(include="model", top_logprobs="model")
    items = _input(raw["input"], limits)
    try:
        first = read_create({**shared, "input": items}, limits)
    except InvalidRequest as error:
        paths.translate(error)
        raise
    shared_items = first.input or ()
    requests = tuple(
        msgspec.structs.replace(first, input=(*shared_items, _asked(question, is_reversed)))
        for question in parsed
        for is_reversed in (False, True)
    )
    return DecisionsRequest(questions=parsed, requests=requests, paths=paths)


def _question(raw: object, path: str) -> Question:
    fields = read_object(raw, path)
    kind = _QUESTIONS[read_tag(fields, path, _QUESTIONS)]
    require(fields, path, "instructions")
    text = _text(fields["instructions"], f"{path}.instructions")
    question: Question = convert({**fields, "instructions": text}, kind, path)
    if not isinstance(question, Predicate):
        values = _values(question)
        name = "choices" if isinstance(question, ChoiceQuestion) else "levels"
        if len({(type(each), each) for each in values}) < len(values):
            raise invalid_field(f"{path}.{name}", "one of them occurs twice.")
    return question


def _input(raw: object, limits: BodyLimits) -> list[JsonObject]:
    if isinstance(raw, str):
        if not raw:
            raise empty_value("input", raw)
        return [_message(raw)]
    items = read_array(raw, "input", limits.items, "a string or an array")
    if not items:
        raise empty_value("input", items)
    return [_item(item, f"input[{at}]") for at, item in enumerate(items)]


def _item(raw: object, path: str) -> JsonObject:
    fields = {"type": "message", **read_object(raw, path)}
    read_tag(fields, path, _ITEM_TYPES)
    if isinstance(content := fields.get("content"), list):
        fields["content"] = [
            _part(part, f"{path}.content[{at}]") for at, part in enumerate(content)
        ]
    return fields


def _part(raw: object, path: str) -> object:
    """Translate a part: JSON becomes text. Other parts stay as they are, and are checked later."""
    if not isinstance(raw, dict):
        return raw
    if raw.get("type") == "input_json":
        return {"type": "input_text", "text": _json_text(raw, path)}
    if "file_id" in raw:
        raise unsupported_parameter(f"{path}.file_id", where="in decisions")
    return raw


def _json_text(raw: Mapping[str, Any], path: str) -> str:
    if not isinstance(raw.get("data"), dict | list):
        found = json_type_name(raw.get("data"))
        raise invalid_type(f"{path}.data", "an object or an array", found)
    encoded = msgspec.json.encode(raw["data"])
    if len(encoded) > _MAX_JSON_BYTES:
        raise invalid_field(f"{path}.data", f"JSON of at most {_MAX_JSON_BYTES} bytes is accepted.")
    return encoded.decode()


def _text(raw: object, path: str) -> str:
    """Return the text of instructions. They may be a string, or parts with text or JSON."""
    if isinstance(raw, str):
        if not raw:
            raise empty_value(path, raw)
        return raw
    texts = []
    for at, part in enumerate(read_array(raw, path, 64, "a string or an array")):
        where = f"{path}[{at}]"
        fields = read_object(part, where)
        if read_tag(fields, where, ("input_text", "input_json")) == "input_json":
            texts.append(_json_text(fields, where))
        else:
            texts.append(str(known_fields(fields, ("type", "text"), where).get("text", "")))
    return "\n".join(texts)


def _message(text: str) -> JsonObject:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _options(question: Question) -> tuple[str, ...]:
    """Return the texts with which the model may answer. They are distinct: where the string "true"
    and the boolean are both options, strings have quotes."""
    if isinstance(question, Predicate):
        return ("Yes", "No")
    values = _values(question)
    texts = tuple(each.strip() if isinstance(each, str) else _json(each) for each in values)
    return texts if len(set(texts)) == len(texts) else tuple(map(_json, values))


def _values(question: ChoiceQuestion | ScoreQuestion) -> tuple[str | bool, ...]:
    if isinstance(question, ChoiceQuestion):
        return tuple(each.value for each in question.choices)
    return tuple(each.label for each in question.levels)


def _json(value: str | bool) -> str:
    return msgspec.json.encode(value).decode()


def _descriptions(question: Question) -> tuple[str | None, ...]:
    if isinstance(question, Predicate):
        return (None, None)
    options = question.choices if isinstance(question, ChoiceQuestion) else question.levels
    return tuple(each.description for each in options)


def _asked(question: Question, is_reversed: bool) -> it.Message:
    """Return the message with a question."""
    options = list(zip(_options(question), _descriptions(question), strict=True))
    if is_reversed:
        options.reverse()
    asked = question.instructions
    if isinstance(question, Predicate):
        asked = f"True or not: {asked}"
    if any(description for _, description in options):
        lines = [f"- {text}: {about}" if about else f"- {text}" for text, about in options]
        text = "\n".join((asked, "Answer with one of:", *lines))
    else:
        text = f"{asked}\nAnswer with {' or '.join(text for text, _ in options)}."
    return it.Message(role="user", content=(it.InputText(text=text),))


# --- the answer ----------------------------------------------------------------------------------


def first_tokens(response: Response) -> dict[str, float]:
    """Return the likeliest tokens at the beginning of a response, with their probabilities."""
    logprobs = [logprob for part in text_parts(response) for logprob in part.logprobs]
    if not logprobs:
        return {}
    tokens = {logprobs[0].token: logprobs[0].logprob}
    tokens |= {each.token: each.logprob for each in logprobs[0].top_logprobs}
    return {token: math.exp(logprob) for token, logprob in tokens.items()}


def make_decisions(
    request: DecisionsRequest, shares: Sequence[Sequence[float]], model: str, usage: Usage
) -> DecisionList:
    """Build the answers. ``shares``: for each of ``request.requests``, the shares of its
    options."""
    pairs = zip(shares[::2], shares[1::2], strict=True)
    return DecisionList(
        model=model,
        answers=tuple(
            _answer(question, _probabilities(*pair))
            for question, pair in zip(request.questions, pairs, strict=True)
        ),
        usage=usage,
    )


def _probabilities(first: Sequence[float], second: Sequence[float]) -> list[float] | None:
    """Return the probabilities of the options, averaged over both orders. Returns None if the model
    gave none of the options a probability."""
    found = [each for each in (first, second[::-1]) if sum(each) > 0]
    return [sum(column) / len(found) for column in zip(*found, strict=True)] if found else None


def _answer(question: Question, probabilities: list[float] | None) -> DecisionAnswer:
    name = question.name
    if probabilities is None:
        return RefusalAnswer(name=name)
    if isinstance(question, Predicate):
        return PredicateAnswer(name=name, probability=probabilities[0])
    confidence = _confidence(probabilities)
    if isinstance(question, ChoiceQuestion):
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return ChoiceAnswer(
            name=name,
            choice=question.choices[best].value,
            confidence=confidence,
            probabilities=tuple(
                ChoiceProbability(each.value, p)
                for each, p in zip(question.choices, probabilities, strict=True)
            ),
        )
    return ScoreAnswer(
        name=name,
        score=sum(at * p for at, p in enumerate(probabilities)),
        confidence=confidence,
        probabilities=tuple(
            LevelProbability(each.label, at, p)
            for at, (each, p) in enumerate(zip(question.levels, probabilities, strict=True))
        ),
    )


def _confidence(probabilities: Sequence[float]) -> float:
    """Return 1 minus the entropy of the probabilities, as a share of the largest entropy."""
    entropy = -sum(p * math.log(p) for p in probabilities if p > 0)
    return min(1.0, max(0.0, 1 - entropy / math.log(len(probabilities))))
