"""Read the operator's formats from TOML files. A format describes how a model writes tool calls or
reasoning.

A format in a file has the same keys as ``ToolFormat`` or ``ReasoningFormat``. Unknown keys are
rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct

from antiphon.config.options import did_you_mean, read_file
from antiphon.dialects.format_check import round_trip_failure
from antiphon.dialects.formats.registry import SHIPPED, Formats
from antiphon.dialects.formats.types import (
    START,
    THINKING,
    ContentKind,
    ReasoningFormat,
    ToolFormat,
)
from antiphon.errors import SetupError

_Row = TypeVar("_Row", ToolFormat, ReasoningFormat)
_KINDS: Mapping[str, type[ToolFormat] | type[ReasoningFormat]] = {
    "tools": ToolFormat,
    "reasoning": ReasoningFormat,
}
#: Values of a state's ``reads``: the first set is for arguments that are not JSON, the second set
#: is for names.
_PARAMETERS = frozenset({"pairs", "elements", "key"})
_NAMES = frozenset({"name", "label", "record"})
#: Fields that a file cannot set. The name comes from the table's head. The other fields are
#: documentation of Antiphon's own formats.
_RESERVED = frozenset({"name", "models", "aliases", "source"})
_STEP = re.compile(r"\.\w+|\[(?:\.\.\.|\d+)\]")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def load(folder: Path, formats: Formats = SHIPPED) -> Formats:
    """Return the reasoning and tool formats of the ``*.toml`` files in the folder, followed by
    ``formats``.

    A format in a file replaces the format with the same name in ``formats``. Raises ``SetupError``
    with a one-line message that names the file and the key.
    """
    folder = folder.expanduser()
    if not folder.is_dir():
        raise SetupError(f"formats_dir: {folder} is no folder")
    tools: dict[str, ToolFormat] = {}
    reasoning: dict[str, ReasoningFormat] = {}
    for path in sorted(folder.glob("*.toml")):
        for kind, table in read_file(path).items():
            if kind not in _KINDS:
                raise SetupError(f"{path}: {kind} is unknown{did_you_mean(kind, _KINDS)}")
            if not isinstance(table, dict):
                raise SetupError(f"{path}: {kind} must be a table")
            for name, value in table.items():
                where = f"{path}: {kind}.{name}"
                if kind == "tools":
                    tools[name] = _tool(_row(ToolFormat, name, value, where), where)
                else:
                    reasoning[name] = _thinking(_row(ReasoningFormat, name, value, where), where)
    return Formats(tools=tools, reasoning=reasoning).extend(formats)


def _row(cls: type[_Row], name: str, table: object, where: str) -> _Row:
    if not isinstance(table, dict):
        raise SetupError(f"{where} must be a table")
    if "name" in table:
        raise SetupError(f"{where}.name is unknown: the name stands in the table's head")
    for key in _unknown(cls, table, ""):
        raise SetupError(f"{where}{key} is unknown")
    try:
        row: _Row = msgspec.convert({**table, "name": name}, cls)
    except msgspec.ValidationError as error:
        raise SetupError(f"{where}{_fault(cls, {**table, 'name': name}, error)}") from None
    try:
        re.compile(row.mark)
    except re.error as error:
        raise SetupError(f"{where}.mark is no pattern: {error}") from None
    return row


def _fault(cls: type[_Row], table: dict[str, Any], error: msgspec.ValidationError) -> str:
    """Return a one-line message for a format that is not valid: the path of the invalid value, and
    the reason. ``table``: the format as the file contains it. ``error``: msgspec's error."""
    said, _, at = str(error).partition(" - at `$")
    names: list[str] = []
    inner: Any = table
    for step in _STEP.findall(at):
        if step == "[...]":  # msgspec does not name the key
            step = next((each for each in inner if not _accepts(cls, table, [*names, each])), "")
        elif step.startswith("["):
            break
        names.append(step.removeprefix("."))
        inner = inner.get(names[-1])
    where = "".join(f".{name}" for name in names)
    if (missing := _MISSING.fullmatch(said)) is not None:
        return f"{where}.{missing[1]} is missing"
    if names[-1:] == ["reads"] and isinstance(inner, str):
        return f"{where}: {inner!r} is nothing to read{did_you_mean(inner, get_args(ContentKind))}"
    return f"{where}: {said.replace('`object`', 'a table').replace('`', '')}"


def _accepts(cls: type[_Row], table: Mapping[str, object], path: Sequence[str]) -> bool:
    """Return whether a format is valid after ``_only`` has removed the entries that are not on
    ``path``. If it is still invalid, the invalid entry is on ``path``.

    ``_fault`` calls this function for each key of an inner table, because msgspec's error does not
    name the key of the invalid entry.

    ``table``: the format. ``path``: the keys that lead from the format to the checked entry.
    """
    try:
        msgspec.convert(_only(table, path), cls)
    except msgspec.ValidationError:
        return False
    return True


def _only(table: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """Return a copy of the format ``table``. In the copy, each table that ``path`` goes through
    keeps only the entry that is on ``path``. Fields that ``path`` does not go through are copied
    unchanged.

    ``path``: alternately the name of a field that holds a table, and a key of this table. Example:
    for the path ``["states", "name", "on", "x"]``, the table ``states`` of the copy contains only
    the state "name", and the table ``on`` of this state contains only the key "x". All other fields
    of the format and of the state are copied.
    """
    if not path:
        return table
    key, name, *rest = path
    inner = table[key][name]
    return {**table, key: {name: _only(inner, rest) if rest else inner}}


def _unknown(cls: type[Struct], table: Mapping[str, object], where: str) -> Iterator[str]:
    """Yield the path of each unknown key in ``table`` and in its inner tables. The fields of
    ``cls`` are the known keys of ``table``. ``where``: the path of ``table``. Each yielded path
    begins with ``where``."""
    types = get_type_hints(cls)
    names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
    hints = {key: types[field] for key, field in names}
    for key, value in table.items():
        if key not in hints or key in _RESERVED:
            yield f"{where}.{key}"
            continue
        for inner in (hints[key], *get_args(hints[key])):
            if not (isinstance(inner, type) and issubclass(inner, Struct)):
                continue
            if get_args(hints[key])[:1] == (str,) and isinstance(value, dict):
                for name, each in value.items():
                    if isinstance(each, dict):
                        yield from _unknown(inner, each, f"{where}.{key}.{name}")
            elif isinstance(value, dict):
                yield from _unknown(inner, value, f"{where}.{key}")


def _thinking(row: ReasoningFormat, where: str) -> ReasoningFormat:
    thinks = row.open or row.close or not row.answer[0]
    for key in ("open", "close"):
        if not all(getattr(row, key)) or (thinks and not getattr(row, key)):
            raise SetupError(f"{where}.{key} must name what stands there")
    return row


def _tool(row: ToolFormat, where: str) -> ToolFormat:
    """Check the state machine of a tool format: every state that a transition names exists, every
    state is reachable, and the states can parse tool calls that are written in this format. Returns
    the format. Raises ``SetupError``."""
    ends = {START, THINKING}
    leads = [(f"opens.{literal}", to) for literal, to in row.opens.items()]
    leads += [(key, to) for key in ("bare_state", "begins") if (to := getattr(row, key))]
    for name, state in row.states.items():
        for key, on in (("on", state.on), ("peek", state.peek)):
            leads += [(f"states.{name}.{key}.{literal}", to) for literal, to in on.items()]
        leads.append((f"states.{name}.then", state.then))
    for key, to in leads:
        if to not in row.states and to not in ends:
            raise SetupError(
                f"{where}.{key}: there is no state {to!r}{did_you_mean(to, row.states)}"
            )
    for name in row.states:
        if name not in {to for _, to in leads} or name in ends:
            raise SetupError(f"{where}.states.{name}: nothing leads there")
    _check_ends(row, where)
    if (text := round_trip_failure(row)) is not None:
        said = json.dumps(text, ensure_ascii=False)
        raise SetupError(f"{where}.written: the states do not read such calls: {said}")
    return row


def _check_ends(row: ToolFormat, where: str) -> None:
    if not row.opens and not row.bare_state:
        raise SetupError(f"{where}.opens must name what begins a call")
    if (row.bare and not row.bare_state) or len(row.bare) > 1:
        raise SetupError(f"{where}.bare must be one character, and bare_state its state")
    if "" in row.opens or any("" in {*s.on, *s.peek} for s in row.states.values()):
        raise SetupError(f"{where}: a terminal must not be empty")
    reads = {state.reads for state in row.states.values()}
    if not reads & _NAMES:
        raise SetupError(f"{where}.states: none reads the name of a call")
    needs = bool(reads & _PARAMETERS)
    if needs != (row.written.parameter is not None):
        raise SetupError(
            f"{where}.written.parameter is {'missing' if needs else 'not needed'}: states read"
            f" {', '.join(sorted(reads))}"
        )
    if "pairs" in reads and not row.written.after:
        raise SetupError(f"{where}.written.after must begin with what ends the pairs")
