"""The promise of ``docs/from-openai.md``: each member that the official client's types allow in a
request is honoured, refused by name, or a hint that cannot change the answer.

The test walks the client's types and ours side by side. A member that our types declare is read,
and ``FIELDS`` says how each field of the request is treated. The two tables list all others.
"""

from __future__ import annotations

import collections.abc
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Struct
from msgspec.structs import fields
from openai.types.responses import (
    input_token_count_params,
    response_compact_params,
    response_create_params,
)
from typing_extensions import is_typeddict

import antiphon
from antiphon.wire.request import CompactRequest, CreateResponse, InputTokensRequest
from antiphon.wire.tags import tag_of

#: Members that our types do not declare → why leaving them out cannot change the answer.
LEFT_OUT: dict[str, str] = {}
_SHOWN = "the model is shown it as it came"
_RETURNED = "it is stored and returned, and concerns only the client"
#: Objects that our types leave open → who reads their members: a module or a package, whose source
#: names each of them, or nobody.
READ_ELSEWHERE: dict[str, str] = {
    "apply_patch_call.operation": _SHOWN,
    "code_interpreter.container": "tools wire/parsing",
    "code_interpreter_call.outputs": _SHOWN,
    "computer_call.action": _SHOWN,
    "computer_call.actions": _SHOWN,
    "computer_call.pending_safety_checks": _RETURNED,
    "computer_call_output.acknowledged_safety_checks": _RETURNED,
    "file_search.filters": "wire/resources",
    "file_search.ranking_options": "tools/file_search wire/parsing",
    "file_search_call.results": _SHOWN,
    "image_generation.input_image_mask": "tools/image_generation runs/request",
    "image_generation.svg": "tools/image_generation",
    "image_generation_call.error": _SHOWN,
    "image_generation_call.svg_usage": _RETURNED,
    "local_shell_call.action": _SHOWN,
    "mcp.allowed_tools": "tools/mcp",
    "mcp.require_approval": "tools/mcp",
    "mcp_call.error": _SHOWN,
    "mcp_list_tools.tools": "tools/mcp",
    "shell.environment": "tools",
    "shell_call.action": _SHOWN,
    "shell_call.environment": _RETURNED,
    "shell_call_output.output": _SHOWN,
    "web_search.filters": "tools/web_search",
    "web_search.user_location": "tools/web_search",
    "web_search_2025_08_26.filters": "tools/web_search",
    "web_search_2025_08_26.user_location": "tools/web_search",
    "web_search_call.action": _SHOWN,
    "web_search_preview.user_location": "tools/web_search",
    "web_search_preview_2025_03_11.user_location": "tools/web_search",
}

PACKAGE = Path(antiphon.__file__).parent
_WRAPPERS = (Annotated, Required, NotRequired)
_LISTS = (list, tuple, collections.abc.Iterable)


def arms(hint: Any) -> Iterator[Any]:
    """Yield the types in a hint, without unions, lists and annotations around them."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for arm in get_args(hint):
            yield from arms(arm)
    elif origin in _WRAPPERS or origin in _LISTS:
        yield from arms(get_args(hint)[0])
    elif hasattr(hint, "__value__"):  # a named alias
        yield from arms(hint.__value__)
    else:
        yield hint


def tags(sdk: Any) -> set[str]:
    """Return the values of the member ``type``."""
    hint = get_type_hints(sdk).get("type")
    return {value for arm in arms(hint) if get_origin(arm) is Literal for value in get_args(arm)}


def counterparts(sdk: Any, ours: list[Any]) -> list[type[Struct]]:
    """Return those of our types that stand for a type of the client."""
    structs = [each for each in ours if isinstance(each, type) and issubclass(each, Struct)]
    named = [each for each in structs if each.__struct_config__.tag is not None]
    found = [each for each in named if tag_of(each) in tags(sdk)]
    return found or [each for each in structs if each not in named] or named


class Walk:
    """``missing``, ``opaque``: what the walk has found for the two tables."""

    def __init__(self) -> None:
        self.missing: set[str] = set()
        #: Name of an open object → the names of its members.
        self.opaque: dict[str, set[str]] = {}
        self.seen: set[tuple[Any, type[Struct]]] = set()

    def compare(self, theirs: Any, ours: Any, name: str) -> None:
        own = list(arms(ours))
        for sdk in arms(theirs):
            if not is_typeddict(sdk):
                continue
            structs = counterparts(sdk, own)
            if not structs:
                self.opaque.setdefault(name, set()).update(get_type_hints(sdk))
            for struct in structs:
                self._members(sdk, struct)

    def _members(self, sdk: Any, struct: type[Struct]) -> None:
        if (sdk, struct) in self.seen:
            return
        self.seen.add((sdk, struct))
        label = struct.__struct_config__.tag or struct.__name__
        declared = {field.encode_name: field for field in fields(struct)}
        hints = get_type_hints(struct, include_extras=True)
        for member, hint in get_type_hints(sdk, include_extras=True).items():
            if member in declared:
                self.compare(hint, hints[declared[member].name], f"{label}.{member}")
            elif member != "type" or struct.__struct_config__.tag is None:
                self.missing.add(f"{label}.{member}")


def walk() -> Walk:
    walk = Walk()
    walk.compare(response_create_params.ResponseCreateParamsBase, CreateResponse, "")
    walk.compare(response_compact_params.ResponseCompactParams, CompactRequest, "")
    walk.compare(input_token_count_params.InputTokenCountParams, InputTokensRequest, "")
    return walk


def test_each_member_of_a_request_is_read_or_listed() -> None:
    found = walk()
    assert found.missing == set(LEFT_OUT)
    assert found.opaque.keys() == READ_ELSEWHERE.keys()
    assert len(found.seen) > 150


def test_members_of_open_objects_are_named_where_they_are_read() -> None:
    unnamed: dict[str, set[str]] = {}
    for name, members in walk().opaque.items():
        readers = READ_ELSEWHERE[name]
        if readers in (_SHOWN, _RETURNED):
            continue
        source = "".join(path.read_text() for folder in readers.split() for path in sources(folder))
        if lacking := {member for member in members if not re.search(rf"\b{member}\b", source)}:
            unnamed[name] = lacking
    assert not unnamed


def sources(folder: str) -> Iterator[Path]:
    yield from (PACKAGE / folder).rglob("*.py")
