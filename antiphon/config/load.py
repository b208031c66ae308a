"""The configuration: settings as a file, the environment and flags say them.

``antiphon.toml`` < ``ANTIPHON_…`` < flags; what is unknown is refused by name. The module
that reads the environment. It knows how settings are written, not what becomes of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import SetupError

from .options import (
    Option,
    from_table,
    from_text,
    from_value,
    literal,
    nearest,
    options,
    parts,
    read_file,
    variables,
)
from .settings import Key, McpServer, Model, Settings

__all__ = ["FILE", "Loaded", "load", "untracked", "variable"]

#: Read from the working directory if it is there and no other file was named.
FILE = "antiphon.toml"

_TRACKERS = (
    "DO_NOT_TRACK",
    "HF_HUB_DISABLE_TELEMETRY",
    "TRTLLM_NO_USAGE_STATS",
    "VLLM_NO_USAGE_STATS",
)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """A variable of the environment, for a while: for libraries that can be told in no other way.
    The environment belongs to the whole process."""
    before = os.environ.get(name)  # noqa: TID251
    os.environ[name] = value  # noqa: TID251
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]  # noqa: TID251
        else:
            os.environ[name] = before  # noqa: TID251


class Loaded(Struct, frozen=True):
    """Settings, and where each value came from: ``default``, a file, a variable or a flag."""

    settings: Settings
    origins: Mapping[str, str]


def untracked() -> None:
    """Engines that tell their makers how they are used are told not to, unless the operator says
    otherwise. Theirs are processes of their own, which read the environment."""
    for name in _TRACKERS:
        os.environ.setdefault(name, "1")  # noqa: TID251


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Loaded:
    """Read everything. ``flags``: option names → texts; ``models`` is a list of them. ``file``: the
    file to read, by default ``$ANTIPHON_CONFIG`` or, if it is there, ``antiphon.toml``.

    Raises ``SetupError`` in one line that names the culprit.
    """
    environ = os.environ if environ is None else environ  # noqa: TID251
    known = options(Settings)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(known, "default")
    path = Path(file or environ.get("ANTIPHON_CONFIG") or FILE)
    table = read_file(path) if file or path != Path(FILE) or path.is_file() else {}
    for name, value in table.items():
        if name not in known:
            raise SetupError(f"{path}: {name} is unknown{nearest(name, known)}")
        values[name] = _from_file(known[name], value, f"{path}: ")
        origins[name] = str(path)
    declared: dict[str, Model] = values.get("models", {})
    for name, text in variables(environ, known, besides=("ANTIPHON_CONFIG",)).items():
        values[name] = _from_text(known[name], text, known[name].env, declared)
        origins[name] = known[name].env
    for name, given in (flags or {}).items():
        flag = known[name].flag or name.upper()
        values[name] = _from_text(known[name], given, flag, declared)
        origins[name] = flag
    settings = Settings(**values)
    _check_names(settings)
    models = {name: _with_key(name, model, environ) for name, model in settings.models.items()}
    servers = {n: _with_secrets(n, each, environ) for n, each in settings.mcp_servers.items()}
    return Loaded(replace(settings, models=models, mcp_servers=servers), origins)


def _with_secrets(name: str, server: McpServer, environ: Mapping[str, str]) -> McpServer:
    """The server with what stands in the environment. It is one thing: a URL, a command or a tool
    of this server."""
    if [bool(server.url), bool(server.command), server.tool is not None].count(True) != 1:
        raise SetupError(f"mcp_servers.{name} must have either a url, a command or a tool")

    def filled(field: str, pairs: Mapping[str, str]) -> dict[str, str]:
        for key, value in pairs.items():
            if value.startswith("$") and value[1:] not in environ:
                where = f"mcp_servers.{name}.{field}.{key}"
                raise SetupError(f"{where}: the environment has no {value[1:]}")
        return {k: environ[v[1:]] if v.startswith("$") else v for k, v in pairs.items()}

    return replace(server, headers=filled("headers", server.headers), env=filled("env", server.env))


def _with_key(name: str, model: Model, environ: Mapping[str, str]) -> Model:
    """The model with its key, where only the variable is named that holds it."""
    key = model.api_key or ""
    if not key.startswith("$"):
        return model
    if not environ.get(key[1:]):
        raise SetupError(f"models.{name}.api_key: the environment has no {key[1:]}")
    return replace(model, api_key=environ[key[1:]])


#: Options that are tables of tables, by what these are.
_TABLES: Mapping[str, type[Model] | type[McpServer]] = {"models": Model, "mcp_servers": McpServer}


def _from_file(option: Option, value: Any, where: str) -> Any:
    if option.name in _TABLES and isinstance(value, dict):
        return {
            name: from_table(_TABLES[option.name], table, f"{where}{option.name}.{name}.")
            for name, table in value.items()
        }
    if option.name == "keys" and isinstance(value, list):
        return tuple(
            from_table(Key, table, f"{where}keys[{number}].") for number, table in enumerate(value)
        )
    return from_value(option, value, where)


def _from_text(option: Option, given: Any, name: str, declared: Mapping[str, Model]) -> Any:
    if option.name == "models":
        return _named(given if isinstance(given, list) else parts(given), declared)
    if option.name == "keys":
        return tuple(_key(part, name) for part in parts(given))
    if option.name == "mcp_servers":
        raise SetupError(f"{name}: MCP servers are set in antiphon.toml")
    return from_text(option, given, name)


def _named(texts: Iterable[str], declared: Mapping[str, Model]) -> dict[str, Model]:
    """Models as the command line names them: ``NAME=SOURCE``, a name of the file, or a source."""
    found: dict[str, Model] = {}
    for text in texts:
        name, equals, source = text.partition("=")
        if equals:
            model = Model(source=source)
        elif text in declared:
            model = declared[text]
        else:
            name, model = _name_of(text), Model(source=text)
        if not name or not model.source:
            raise SetupError(f"{text!r} is no model: write NAME=SOURCE, or a source alone")
        if name in found:
            raise SetupError(
                f"two models are called {name!r}: write NAME=SOURCE to tell them apart"
            )
        found[name] = model
    return found


def _name_of(source: str) -> str:
    """A file's name without its ending; a repository's without its owner and "-GGUF"."""
    hub = re.fullmatch(r"(?:hf:)?[\w.-]+/([\w.-]+)(?:/[^:]+\.gguf|:[\w.-]+)?", source)
    if hub and (source.startswith("hf:") or not source.endswith(".gguf")):
        return re.sub(r"[-_.]gguf$", "", hub[1], flags=re.IGNORECASE)
    path = Path(source)
    return path.stem if path.suffix == ".gguf" else path.name


def _key(text: str, name: str) -> Key:
    tenant, equals, digest = text.partition("=")
    if not (tenant and equals and digest):
        raise SetupError(f"{name} must be TENANT=SHA256, with commas between several")
    return Key(tenant=tenant, sha256=digest)


def _check_names(settings: Settings) -> None:
    """Every name stands for one model, and the default is one of them."""
    if not settings.models:
        raise SetupError("models is empty: there must be one to serve")
    owners: dict[str, str] = {}
    for name, model in settings.models.items():
        for called in (name, *model.aliases, *model.adapters):
            other = owners.setdefault(called, name)
            if other != name:
                raise SetupError(f"models {other} and {name} are both called {called!r}")
        if twice := {name, *model.aliases} & model.adapters.keys():
            raise SetupError(f"model {name} and its adapter are both called {min(twice)!r}")
    for option in ("default_model", "summary_model"):
        named = getattr(settings, option)
        if named is not None and named not in owners:
            raise SetupError(f"{option} {literal(named)} is not served{nearest(named, owners)}")
