"""Load settings from ``antiphon.toml``, ``ANTIPHON_…`` variables and flags. Flags override
variables, and variables override the file.

Unknown names are rejected. This is the only module that reads the environment.
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

from .added_models import read_models
from .keys import ApiKey
from .mcp import McpServer
from .model import Model
from .object_storage import storage_options
from .oidc import OidcIssuer, check_issuer
from .options import (
    Option,
    did_you_mean,
    environment_options,
    from_options,
    from_table,
    from_text,
    from_value,
    literal,
    options,
    read_file,
    resolve_variables,
    setting_tables,
    split_list,
)
from .settings import Settings
from .tenants import Tenant

#: Settings file in the working directory. It is read if it exists and no other file is given.
FILE = "antiphon.toml"

_PROXIES = frozenset(
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY DDGS_PROXY"
    " SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE PRIMP_CA_BUNDLE".split()
)
_TRACKERS = ("DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "VLLM_NO_USAGE_STATS")


@contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable of this process for the duration of the block.

    Use this only for libraries that can only be configured by environment variables.
    """
    before = os.environ.get(name)  # noqa: TID251
    os.environ[name] = value  # noqa: TID251
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]  # noqa: TID251
        else:
            os.environ[name] = before  # noqa: TID251


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process with ``variables`` added, for a child process."""
    return {**os.environ, **variables}  # noqa: TID251


def proxy_variables() -> dict[str, str]:
    """Return those environment variables of this process that configure proxies and trusted
    certificates for HTTP clients. Use them for a child process that must not get other
    variables."""
    return {
        name: value
        for name, value in os.environ.items()  # noqa: TID251
        if name.upper() in _PROXIES
    }


class LoadedSettings(Struct, frozen=True):
    """Loaded settings. ``origins``: name of a setting → origin of its value: ``default``, the path
    of a file, the name of an environment variable, or a flag.
    """

    settings: Settings
    origins: Mapping[str, str]


class SettingsSources(Struct, frozen=True, kw_only=True):
    """The sources of the settings, which are the arguments of ``load``. With them, the settings can
    be loaded again, later or in another process. Each load reads the environment and the file
    again."""

    flags: dict[str, str | list[str]] = {}
    model_flags: dict[str, str] = {}
    file: str | None = None

    def load(self) -> LoadedSettings:
        """Load the settings. Raises ``SetupError``."""
        file = None if self.file is None else Path(self.file)
        return load(self.flags, model_flags=self.model_flags, file=file)


def disable_usage_statistics() -> None:
    """Turn off the usage statistics that inference libraries, such as vLLM, send to their
    developers.

    This function sets environment variables, which child processes inherit. A variable that the
    operator has set is not changed.
    """
    for name in _TRACKERS:
        os.environ.setdefault(name, "1")  # noqa: TID251


def load(
    flags: Mapping[str, str | list[str]] | None = None,
    *,
    model_flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> LoadedSettings:
    """Load the settings from all sources.

    ``flags``: name of an option → its text on the command line. The value for ``models`` is a list
    of texts. ``model_flags``: name of a model's option → its text on the command line; allowed only
    if exactly one model is served. ``environ``: environment variables; the default is the
    environment of this process. ``file``: the settings file. The default is the file in
    ``$ANTIPHON_CONFIG``, or ``antiphon.toml`` if it exists.

    Raises ``SetupError`` with one line that names the faulty setting.
    """
    environ = os.environ if environ is None else environ  # noqa: TID251
    known = options(Settings)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(known, "default")
    path = Path(file or environ.get("ANTIPHON_CONFIG") or FILE)
    table = read_file(path) if file or path != Path(FILE) or path.is_file() else {}
    for name, value in _entries(table, f"{path}: "):
        if name not in known:
            raise SetupError(f"{path}: {name} is unknown{did_you_mean(name, known)}")
        values[name] = _from_file(known[name], value, f"{path}: ")
        origins[name] = str(path)
    declared: dict[str, Model] = values.get("models", {})
    texts = environment_options(environ, known.values(), besides=("ANTIPHON_CONFIG",))
    for name, text in texts.items():
        values[name] = _from_text(known[name], text, known[name].env, declared)
        origins[name] = known[name].env
    for name, given in (flags or {}).items():
        flag = known[name].flag or name.upper()
        values[name] = _from_text(known[name], given, flag, declared)
        origins[name] = flag
    settings = _with_model_flags(from_options(Settings, values), model_flags or {})
    settings = resolve_variables(_with_added_models(settings), environ)
    _check_names(settings)
    _check_implementers(settings)
    for server, each in settings.mcp.servers.items():
        _check_server(server, each)
    for issuer, each_issuer in settings.oidc.items():
        check_issuer(issuer, each_issuer)
    storage = storage_options(settings.files, settings.files_options, environ)
    return LoadedSettings(replace(settings, files_options=storage), origins)


def load_settings(
    flags: Mapping[str, str | list[str]] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Load the settings with ``load`` and return them without their origins. For the arguments, see
    ``load``."""
    return load(flags, environ=environ, file=file).settings


def _with_model_flags(settings: Settings, flags: Mapping[str, str]) -> Settings:
    """Apply the flags for model options to the served model. Raises ``SetupError`` if several
    models are served."""
    known = options(Model)
    changes = {
        name: from_text(known[name], text, known[name].flag or name) for name, text in flags.items()
    }
    if not changes:
        return settings
    if len(settings.models) != 1:
        flag = known[next(iter(changes))].flag
        raise SetupError(
            f"{flag} is for one model, but {len(settings.models)} are served: name one on the"
            " command line, or set it in [models.NAME]"
        )
    ((name, model),) = settings.models.items()
    return replace(settings, models={name: replace(model, **changes)})


def _with_added_models(settings: Settings) -> Settings:
    """Add the models that operators have added over the API. Raises ``SetupError``."""
    path = settings.added_models
    if path is None:
        return settings
    added = _from_file(options(Settings)["models"], read_models(path), f"{path}: ")
    assert isinstance(added, dict)
    taken = {
        name
        for own, model in settings.models.items()
        for name in (own, *model.aliases, *model.adapters)
    }
    new = {name: model for name, model in added.items() if name not in taken}
    return replace(settings, models={**settings.models, **new})


def _check_server(name: str, server: McpServer) -> None:
    """Raise ``SetupError`` if the settings of an MCP server contradict each other."""
    if [bool(server.url), bool(server.command), server.tool is not None].count(True) != 1:
        raise SetupError(f"mcp.servers.{name} must have either a url, a command or a tool")
    if server.tool is not None and server.implements is not None:
        raise SetupError(f"mcp.servers.{name}.implements needs a url or a command")
    _check_oauth(name, server)


def _check_oauth(name: str, server: McpServer) -> None:
    """Raise ``SetupError`` if Antiphon cannot get tokens for an MCP server as the settings say."""
    oauth = (server.oauth_token_url, server.oauth_client_id, server.oauth_client_secret)
    if not any(oauth) and not server.oauth_scope:
        return
    if not (server.url and all(oauth)):
        raise SetupError(
            f"mcp.servers.{name}: set url and all of oauth_token_url, oauth_client_id and"
            " oauth_client_secret, or no setting of OAuth"
        )
    if not server.oauth_token_url.startswith(("https://", "http://")):
        raise SetupError(f"mcp.servers.{name}.oauth_token_url must begin with https:// or http://")
    if "authorization" in map(str.lower, server.headers):
        raise SetupError(f"mcp.servers.{name}: set headers.Authorization or OAuth, but not both")


#: Name of an option that is a table of tables → type of the inner tables.
_TABLES: Mapping[str, type[Model | McpServer | OidcIssuer | Tenant]] = {
    "models": Model,
    "mcp.servers": McpServer,
    "oidc": OidcIssuer,
    "tenants": Tenant,
}


def _entries(table: Mapping[str, object], where: str) -> Iterator[tuple[str, object]]:
    """Yield the name and the value of each option in a settings file. Raises ``SetupError`` if a
    table of settings has a plain value."""
    tables = setting_tables(Settings)
    for name, value in table.items():
        if name not in tables:
            yield name, value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                yield f"{name}.{key}", inner
        else:
            main = next((key for key, each in options(tables[name]).items() if each.is_main), None)
            more = f": set {name}.{main}" if main else ""
            raise SetupError(f"{where}{name} must be a table, not {literal(value)}{more}")


def _from_file(option: Option, value: object, where: str) -> object:
    if option.name in _TABLES and isinstance(value, dict):
        return {
            name: from_table(
                _TABLES[option.name],
                _join_source(table) if option.name == "models" else table,
                f"{where}{option.name}.{name}.",
            )
            for name, table in value.items()
        }
    return from_value(option, value, where)


def _join_source(table: Any) -> object:
    """Return ``table``, the table of a model in the settings file. If its value ``source`` is a
    list of addresses, replace the list by one text with the addresses, separated by commas."""
    source = table.get("source") if isinstance(table, dict) else None
    if isinstance(source, list) and source and all(isinstance(each, str) for each in source):
        return {**table, "source": ",".join(source)}
    return table


def _from_text(
    option: Option, given: str | list[str], name: str, declared: Mapping[str, Model]
) -> object:
    if option.name == "models":
        texts = given if isinstance(given, list) else _split_models(given)
        return _parse_models(texts, declared)
    text = ",".join(given) if isinstance(given, list) else given
    if option.name == "keys":
        return tuple(_parse_key(part, name) for part in split_list(text))
    if option.name in _TABLES:
        raise SetupError(f"{name}: {option.name} are set in antiphon.toml, in tables")
    return from_text(option, text, name)


def _split_models(text: str) -> list[str]:
    """Split a comma-separated list of models. If the source of a model is a URL, each URL that
    follows directly is another server for the same model, not a new model. Example:
    ``a=http://one,http://two`` is one model with two servers."""
    found: list[str] = []
    for part in split_list(text):
        is_url = part.startswith(_URL_SCHEMES)
        if found and is_url and found[-1].partition("=")[2].startswith(_URL_SCHEMES):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


_URL_SCHEMES = ("http://", "https://", "dns+http://", "dns+https://")


def _parse_models(texts: Iterable[str], declared: Mapping[str, Model]) -> dict[str, Model]:
    """Parse the models from the command line or the environment. A text has one of three forms:
    ``NAME=SOURCE``, only the name of a model in the settings file, or only a source. ``declared``:
    the models in the settings file. Raises ``SetupError``."""
    found: dict[str, Model] = {}
    for text in texts:
        name, equals, source = text.partition("=")
        if equals:
            model = Model(source=source)
        elif text in declared:
            model = declared[text]
        else:
            name, model = _default_name(text), Model(source=text)
        if not name or not model.source:
            raise SetupError(f"{text!r} is not a model: write NAME=SOURCE or a source")
        if name in found:
            raise SetupError(
                f"two models are named {name!r}: write NAME=SOURCE to give them different names"
            )
        found[name] = model
    return found


def _default_name(source: str) -> str:
    """Derive the name of a model from its source. It is the name of the file without the suffix, or
    the name of the repository without "-GGUF"."""
    hub = re.fullmatch(r"(?:hf:)?[\w.-]+/([\w.-]+)(?:/[^:]+\.gguf|:[\w.-]+)?", source)
    if hub and (source.startswith("hf:") or not source.endswith(".gguf")):
        return re.sub(r"[-_.]gguf$", "", hub[1], flags=re.IGNORECASE)
    path = Path(source)
    return path.stem if path.suffix == ".gguf" else path.name


def _parse_key(text: str, name: str) -> ApiKey:
    tenant, equals, digest = text.partition("=")
    if not (tenant and equals and digest):
        raise SetupError(f"{name} must be TENANT=SHA256, with commas between several")
    return ApiKey(tenant=tenant, sha256=digest)


def _check_names(settings: Settings) -> None:
    """Raise ``SetupError`` if two models have the same name, or if a setting names a model that is
    not served."""
    if not settings.models:
        raise SetupError("models is empty: configure at least one model")
    owners: dict[str, str] = {}
    for name, model in settings.models.items():
        for called in (name, *model.aliases, *model.adapters):
            other = owners.setdefault(called, name)
            if other != name:
                raise SetupError(f"models {other} and {name} are both named {called!r}")
        if twice := {name, *model.aliases} & model.adapters.keys():
            raise SetupError(f"model {name} and its adapter are both named {min(twice)!r}")
    if settings.summary_model is not None and settings.reasoning_summaries != "model":
        raise SetupError('summary_model needs reasoning_summaries = "model"')
    for option in ("default_model", "summary_model"):
        named = getattr(settings, option)
        if named is not None and named not in owners:
            raise SetupError(
                f"{option} {literal(named)} is not served{did_you_mean(named, owners)}"
            )


def _check_implementers(settings: Settings) -> None:
    """Raise ``SetupError`` if two MCP servers implement the same built-in tool."""
    owners: dict[str, str] = {}
    for name, server in settings.mcp.servers.items():
        if server.implements is not None:
            other = owners.setdefault(server.implements, name)
            if other != name:
                raise SetupError(
                    f"mcp.servers {other} and {name} both implement {server.implements}"
                )
