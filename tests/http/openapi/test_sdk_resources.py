"""Each method of the official clients calls an endpoint of this server, or one that
``docs/not-offered.md`` lists. Each parameter that the method sends is read, or listed here."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from typing_extensions import is_typeddict

from antiphon.http.not_offered import not_offered

_CALL = re.compile(
    r'self\._(get|post|put|patch|delete|get_api_list)\(\s*(?:path_template\(\s*)?f?"(/[^"?]*)'
)
_PARAMS = re.compile(r"\b(\w+_params)\.(\w+Params\w*)")
_FIELD = re.compile(r"\{[^}]*\}")
_HEADER = "a header of the client"
_USAGE = "refused by name: the usage log does not know it"
_AUDIO = "refused by name, with what to do instead"
_TEXTS = "see tests/compat/test_chat_members.py"
#: Parameter → why no endpoint declares it.
UNDECLARED = {
    "betas": _HEADER,
    "user_profile_id": _HEADER,
    "workspace_id": _HEADER,
    **dict.fromkeys(("batch", "context_levels", "line_items"), _USAGE),
    **dict.fromkeys(("user_ids", "vector_store_ids"), _USAGE),
    **dict.fromkeys(("include", "keywords", "languages"), _AUDIO),
    **dict.fromkeys(("known_speaker_names", "known_speaker_references"), _AUDIO),
    **dict.fromkeys(("billing_policy", "fallback_credit_token"), "refused by name"),
    **dict.fromkeys(("markup", "style", "svg"), "images refuse them by name where they cannot"),
    **dict.fromkeys(("audio", "modalities", "prediction", "web_search_options"), _TEXTS),
    **dict.fromkeys(("best_of", "suffix"), _TEXTS),
    **dict.fromkeys(("default", "expires_after"), "read from the form of an upload"),
}


class Method(NamedTuple):
    """A method of a client: the path that it calls, and the names of what it sends."""

    verb: str
    path: str
    sent: frozenset[str]


def methods(package: str, prefix: str) -> Iterator[Method]:
    """Yield what the source of a client's resources calls."""
    root = Path(inspect.getfile(importlib.import_module(package))).parent / "resources"
    for file in sorted(root.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        tree, lines = ast.parse(source), source.splitlines()
        places = {
            name.asname or name.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and "types" in node.module
            for name in node.names
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if call := _CALL.search(text):
                sent: set[str] = set()
                for module, name in _PARAMS.findall(text):
                    home = importlib.import_module(f"{package}.{places[module]}.{module}")
                    sent |= members(getattr(home, name))
                verb = call[1].removesuffix("_api_list")
                verb = "post" if 'method="post"' in text else verb
                yield Method(verb, prefix + _FIELD.sub("{}", call[2]), frozenset(sent))


def members(params: Any) -> set[str]:
    if is_typeddict(params):
        return set(params.__annotations__)
    return {name for arm in get_args(params) for name in members(arm)}


def properties(schema: dict[str, Any], schemas: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    parts = [part for name in ("allOf", "anyOf", "oneOf") for part in schema.get(name, ())]
    return set(schema.get("properties", ())).union(*(properties(each, schemas) for each in parts))


def declared(document: dict[str, Any]) -> dict[str, dict[str, set[str]]]:
    """Return path → method → names of the parameters and of the members of the body."""
    found: dict[str, dict[str, set[str]]] = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            names = {each["name"] for each in operation.get("parameters", ())}
            for content in operation.get("requestBody", {}).get("content", {}).values():
                names |= properties(content["schema"], document["components"]["schemas"])
            found.setdefault(_FIELD.sub("{}", path), {}).setdefault(verb, set()).update(names)
    return found


@pytest.mark.parametrize(("package", "prefix"), [("openai", "/v1"), ("anthropic", "")])
def test_methods_of_the_client_are_known(package: str, prefix: str, document: Any) -> None:
    ours = declared(document)
    unknown: list[str] = []
    undeclared: dict[str, set[str]] = {}
    seen = 0
    for method in methods(package, prefix):
        names = ours.get(method.path, {}).get(method.verb)
        if names is None:
            unknown += [method.path] if not_offered(method.path) is None else []
            continue
        seen += 1
        names = {name.partition("[")[0] for name in names}
        if missing := method.sent - names - UNDECLARED.keys():
            undeclared[method.path] = missing
    assert (unknown, undeclared) == ([], {})
    assert seen > 30
