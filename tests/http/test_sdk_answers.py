"""The answers of the server have each member that the types of the official clients demand, and
each optional member that has a meaning here.

The tests compare the type that a method of a client returns with the OpenAPI document, for each
method whose path is served. Where the document allows several types, one of them has to fit.
"""

from __future__ import annotations

import ast
import importlib
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import anthropic
import openai
import pytest
from msgspec import Struct
from pydantic import BaseModel

Json = dict[str, Any]
_VERBS = {"_get": "get", "_get_api_list": "get", "_post": "post", "_delete": "delete"}
#: Types of which the server has no counterpart → why.
LEFT_OUT = {
    "TranscriptionDiarizedSegment": "names of speakers are refused by name",
    "TranscriptionTextSegmentEvent": "names of speakers are refused by name",
    "MultiAgentCall": "multi_agent is refused by name",
    "MultiAgentCallOutput": "multi_agent is refused by name",
    "OtherFileChunkingStrategyObject": "only files that were attached before it existed have it",
}


_FALLBACK = "fallbacks: the requested model always answers"
_BETA_AGENTS = "multi_agent is refused by name"
_UNKNOWN = "engines do not say"
_ONE = "one class of service"
_CLASSES = "usage is not counted by kinds of input"
_BOUND = "thinking is bound to this server, not to a prompt"
#: Optional members that no answer of the server has → why. Those in all types have no type.
ABSENT = {
    "agent": _BETA_AGENTS,
    "caller": "other callers than the model are refused where tools are declared",
    "api_source": "usage is counted by key, model and user",
    "system_fingerprint": _UNKNOWN,
    "inference_geo": "the server is where its operator put it",
    "safety_identifier": "it is a hint of the client",
    "fallback_credit": _FALLBACK,
    "input_transformations": _BOUND,
    "cache_creation": "engines keep prompts as long as they can, whatever the ttl",
    "cache_write_tokens_details": "engines keep prompts as long as they can, whatever the ttl",
    "service_tier": _ONE,
    "speed": _ONE,
    "audio": "models write no audio in chats",
    "line": "models here belong to no line of Anthropic",
    "deprecated_at": "all models are active",
    "retires_at": "all models are active",
    "misalignment": "classifiers of OpenAI's models",
    "prompt_cache_breakpoint": "screenshots are no place for a breakpoint",
    "image": "image.context_compression is refused unless it is off",
    "languages": "transcriptions name one language",
    "logprobs": "include[] of transcriptions is refused",
    "Model.shutdown_date": "all models are active",
    "BetaModelInfo.allowed_fallback_models": _FALLBACK,
    "BetaRefusalStopDetails.fallback_credit_token": _FALLBACK,
    "BetaRefusalStopDetails.fallback_has_prefill_claim": _FALLBACK,
    "BetaRefusalStopDetails.recommended_model": _FALLBACK,
    "BetaMessageIterationUsage.model": _FALLBACK,
    "BetaCompactionBlock.signature": "encrypted_content is what only this server can read",
    "BetaCompactionBlock.tool_changes": "tools stay as the request declares them",
    "BetaDocumentBlock.citations": "citations of pages are in the text that cites them",
    "DocumentBlock.citations": "citations of pages are in the text that cites them",
    "BetaFileMetadata.scope": "files belong to a tenant",
    "ChatCompletionMessage.annotations": "web_search_options are refused",
    "ChatCompletionStoreMessage.annotations": "web_search_options are refused",
    "ChatCompletionStoreMessage.function_call": "stored messages have tool_calls",
    "ChatCompletionChunk.obfuscation": "padded chunks have it; test_stream checks this",
    "ResponseShellCallCommandDeltaEvent.obfuscation": "padded events have it",
    "BetaResponseShellCallCommandDeltaEvent.obfuscation": "padded events have it",
    "CompletionTokensDetails.accepted_prediction_tokens": "prediction is a hint",
    "CompletionTokensDetails.rejected_prediction_tokens": "prediction is a hint",
    "CompletionTokensDetails.audio_tokens": _CLASSES,
    "CompletionTokensDetails.text_tokens": _CLASSES,
    "PromptTokensDetails.audio_tokens": _CLASSES,
    "PromptTokensDetails.image_tokens": _CLASSES,
    "PromptTokensDetails.text_tokens": _CLASSES,
    "DataResultOrganizationCostsResult.quantity_unit": "costs are amounts only",
    "DataResultOrganizationCostsResult.user_id": "costs are counted by project and key",
    "DataResultOrganizationUsageWebSearchesResult.context_level": _CLASSES,
    "FileObject.status_details": "deprecated",
    "ImagesResponse.svg_usage": "no generator here writes SVG",
    "ToolUsageImageGen.cached_tokens": "generators of images do not say",
    "ToolUsageImageGen.cached_tokens_details": "generators of images do not say",
    "TranscriptionTextDeltaEvent.segment_id": "names of speakers are refused by name",
    **{
        f"DataResultOrganizationUsageCompletionsResult.{name}_tokens": _CLASSES
        for name in (
            *(f"input_cache_write{each}" for each in ("", "_12h", "_30m")),
            *(f"input_cached_{each}" for each in ("audio", "image", "text")),
            *(f"input_{each}" for each in ("image", "text", "uncached")),
            *(f"output_{each}" for each in ("image", "text")),
        )
    },
}


class ClientMethod(Struct, frozen=True):
    """A method of a client that sends a request."""

    module: str
    cls: str
    name: str
    verb: str
    path: str

    def answer(self) -> Any:
        """Return the return annotation. Imports the module, which takes time."""
        module = importlib.import_module(self.module)
        method = getattr(getattr(module, self.cls), self.name)
        return get_type_hints(method, vars(module))["return"]


def client_methods(client: types.ModuleType) -> Iterator[ClientMethod]:
    """Yield the methods of a client that send a request."""
    assert client.__file__ is not None
    package = Path(client.__file__).parent
    for file in sorted((package / "resources").rglob("[a-z]*.py")):
        module = ".".join((client.__name__, *file.relative_to(package).with_suffix("").parts))
        for cls in ast.parse(file.read_text()).body:
            if not isinstance(cls, ast.ClassDef) or cls.name.startswith("Async"):
                continue
            for function in cls.body:
                if isinstance(function, ast.FunctionDef) and (sent := request_of(function)):
                    yield ClientMethod(module, cls.name, function.name, *sent)


def request_of(function: ast.FunctionDef) -> tuple[str, str] | None:
    """Return the verb and the path of the request that a method sends, as a pattern."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if (verb := _VERBS.get(node.func.attr)) and node.args:
                if found := re.search(r"""['"](?:/v1)?(/[a-z_{}/]+)""", ast.unparse(node.args[0])):
                    return verb, "/v1" + re.sub(r"\{[^}]*\}", "{}", found[1])
    return None


def arms(hint: Any) -> Iterator[Any]:
    """Yield the types that a type hint contains, also those in unions, lists, pages and streams."""
    if get_origin(hint) is Literal or get_origin(hint) is dict:
        return
    page = getattr(hint, "__pydantic_generic_metadata__", {}).get("args", ())
    if args := get_args(hint) or page:
        for arm in args:
            yield from arms(arm)
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint


def tags(model: type[BaseModel], name: str) -> set[Any]:
    """Return the values of a member that names the type of an object."""
    hint = model.model_fields[name].annotation if name in model.model_fields else None
    return set(get_args(hint)) if get_origin(hint) is Literal else set()


class Comparison:
    """``lacking``: the required members that no type of the document has. ``absent``: the optional
    ones."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self._seen: set[tuple[type[BaseModel], int]] = set()
        self.lacking: set[str] = set()
        self.absent: set[str] = set()

    @property
    def compared(self) -> int:
        return len(self._seen)

    def compare(self, hint: Any, schemas: list[Json]) -> None:
        """Compare the types in a hint with the objects that the schemas describe."""
        for model in arms(hint):
            if model.__name__ in LEFT_OUT or not (found := self._counterparts(model, schemas)):
                continue
            fields = {field.alias or name: field for name, field in model.model_fields.items()}
            required = {name for name, field in fields.items() if field.is_required()}
            best = min(found, key=lambda schema: self._distance(schema, required, set(fields)))
            if (model, id(best)) in self._seen:
                continue
            self._seen.add((model, id(best)))
            members = best["properties"]
            self.lacking |= {f"{model.__name__}.{name}" for name in required - members.keys()}
            optional = fields.keys() - required - members.keys()
            self.absent |= {f"{model.__name__}.{name}" for name in optional}
            for name in fields.keys() & members.keys():
                self.compare(fields[name].annotation, self.objects(members[name]))

    def _counterparts(self, model: type[BaseModel], schemas: list[Json]) -> list[Json]:
        """Return the schemas with the tag of a model, or those without such a tag. A model without
        a tag may be any schema."""
        for name in ("type", "object"):
            if own := tags(model, name):
                named = {id(each): self._tags(each, name) for each in schemas}
                tagged = [each for each in schemas if own & named[id(each)]]
                return tagged or [each for each in schemas if not named[id(each)]]
        return schemas

    def _tags(self, schema: Json, name: str) -> set[Any]:
        tag = self._resolve(schema["properties"].get(name, {}))
        return {tag["const"]} if "const" in tag else set(tag.get("enum", ()))

    def _distance(self, schema: Json, required: set[str], known: set[str]) -> tuple[int, int]:
        members = schema["properties"].keys()
        return len(required - members), len(members ^ known)

    def objects(self, schema: Json) -> list[Json]:
        """Return the objects that a schema describes: its alternatives, the entries of a list, and
        those of a page."""
        schema = self._resolve(schema)
        parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        if isinstance(schema.get("items"), dict):
            parts.append(schema["items"])
        found = [schema] if "properties" in schema else []
        parts += [each["properties"]["data"] for each in found if "data" in each["properties"]]
        return found + [each for part in parts for each in self.objects(part)]

    def _resolve(self, schema: Json) -> Json:
        while (reference := schema.get("$ref")) is not None:
            schema = self._document["components"]["schemas"][reference.rpartition("/")[2]]
        return schema


@pytest.mark.parametrize("client", [openai, anthropic], ids=lambda client: client.__name__)
def test_answer_has_the_members_of_a_client(document: Json, client: types.ModuleType) -> None:
    paths = {re.sub(r"\{[^}]*\}", "{}", path): each for path, each in document["paths"].items()}
    comparison, served = Comparison(document), 0
    for method in client_methods(client):
        if (operation := paths.get(method.path, {}).get(method.verb)) is None:
            continue
        served += 1
        schemas = [
            content["schema"]
            for status, reply in operation["responses"].items()
            if status.startswith("2")
            for content in reply.get("content", {}).values()
        ]
        comparison.compare(
            method.answer(), [o for each in schemas for o in comparison.objects(each)]
        )
    assert sorted(comparison.lacking) == []
    absent = {each for each in comparison.absent if each.partition(".")[2] not in ABSENT}
    assert sorted(absent - ABSENT.keys()) == []
    assert served > 20 and comparison.compared > 60
