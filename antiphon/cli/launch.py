"""``antiphon launch``: start a coding agent against a running server.

The agent gets a temporary configuration, which is deleted when the agent ends. The user's own
configuration of the agent is neither read nor written. By default, such agents also send requests
to other servers (usage statistics, checks for updates). Antiphon turns these requests off with
documented settings of the agent.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.config.load import child_environment
from antiphon.config.options import literal
from antiphon.errors import SetupError

from .client import RequestFailed, Server, remember_server

__all__ = ["CLIENTS", "launch"]

#: The context window in tokens that a client gets if the server does not know the model's.
_CONTEXT = 32_768
_MAX_OUTPUT = 8_000


class _Target(Struct, frozen=True, kw_only=True):
    """The server and the model that a coding agent uses. ``key``: the API key. It is never empty,
    because some agents require a key."""

    server: Server
    model: str
    context_size: int
    key: str


class _Profile(Struct, frozen=True, kw_only=True):
    """How a coding agent is started: with which arguments and environment variables. The arguments
    that the user gives follow after ``arguments``."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


class _Client(Struct, frozen=True, kw_only=True):
    """A coding agent that ``launch`` can start.

    - ``package``: its npm package.
    - ``write``: a function that writes a configuration of the agent into an empty folder, and
      returns the arguments and environment variables with which the agent is started.
    - ``endpoint``: path of the endpoint that the agent needs.
    """

    package: str
    write: Callable[[Path, _Target], _Profile]
    endpoint: str = "/v1/responses"


def launch(
    server: Server, client: str, arguments: Sequence[str], *, model: str | None = None
) -> int:
    """Run a coding agent until it ends, and return its exit code. ``client``: the agent's command,
    such as ``codex``. ``arguments``: the user's arguments for the agent. ``model``: name of the
    model; None means the server's first model. Raises ``SetupError``."""
    known = CLIENTS[client]
    program = shutil.which(client)
    if program is None:
        raise SetupError(f"{client} is not installed: npm install -g {known.package}")
    try:
        target = _target(server, model)
        if known.endpoint not in server.get("/openapi.json")["paths"]:
            raise SetupError(f"{client} needs {known.endpoint}, which {server.url} does not offer")
    except RequestFailed as error:
        raise SetupError(str(error)) from None
    remember_server(server)
    with tempfile.TemporaryDirectory(prefix=f"antiphon-{client}-") as folder:
        profile = known.write(Path(folder), target)
        return _run([program, *profile.arguments, *arguments], profile.environment)


def _target(server: Server, model: str | None) -> _Target:
    listed = server.get("/v1/models")
    catalog = {each["slug"]: each for each in listed["models"]}
    if not catalog:
        raise SetupError(f"{server.url} serves no model that answers conversations")
    name = model or next(iter(catalog))
    if name not in catalog:
        raise SetupError(f"{server.url} does not serve {name!r}; it serves {', '.join(catalog)}")
    return _Target(
        server=server,
        model=name,
        context_size=catalog[name].get("context_window") or _CONTEXT,
        key=server.key or "none",
    )


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the coding agent in this terminal until it ends, and return its exit status. On Ctrl-C,
    this process does nothing, because the coding agent handles it."""
    # A handler, unlike SIG_IGN, is not inherited by the client.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.call(command, env=child_environment(environment))
    finally:
        signal.signal(signal.SIGINT, before)


# --- profiles ------------------------------------------------------------------------------------


def _codex(folder: Path, target: _Target) -> _Profile:
    url = target.server.url
    lines: Mapping[str, Mapping[str, Any]] = {
        "": {
            "model": target.model,
            "model_provider": "antiphon",
            "check_for_update_on_startup": False,
        },
        "analytics": {"enabled": False},
        "model_providers.antiphon": {
            "name": "Antiphon",
            "base_url": url,
            "env_key": "ANTIPHON_API_KEY",
            "wire_api": "responses",
            "model_catalog_url": f"{url}/models",
        },
    }
    text = "\n".join(
        "\n".join(
            ([f"[{table}]"] if table else [])
            + [f"{name} = {literal(value)}" for name, value in values.items()]
        )
        for table, values in lines.items()
    )
    (folder / "config.toml").write_text(text + "\n", encoding="utf-8")
    return _Profile(environment={"CODEX_HOME": str(folder), "ANTIPHON_API_KEY": target.key})


#: Environment variables that set a model of Claude Code.
_CLAUDE_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
#: Environment variables that would make Claude Code use another server.
_CLAUDE_SERVERS = (
    "ANTHROPIC_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_VERTEX",
)


def _claude(folder: Path, target: _Target) -> _Profile:
    # Skips the questions of a first start, except the question whether to trust the folder.
    _write_json(folder / ".claude.json", {"hasCompletedOnboarding": True})
    # Auto mode would check actions on Anthropic's server. The registration of deep links would
    # write to the home folder.
    settings = ("disableAutoMode", "disableDeepLinkRegistration")
    _write_json(folder / "settings.json", dict.fromkeys(settings, "disable"))
    return _Profile(
        environment={
            **dict.fromkeys(_CLAUDE_SERVERS, ""),
            **dict.fromkeys(_CLAUDE_MODELS, target.model),
            "CLAUDE_CONFIG_DIR": str(folder),
            "ANTHROPIC_BASE_URL": target.server.root_url,
            "ANTHROPIC_AUTH_TOKEN": target.key,
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context_size),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(min(_MAX_OUTPUT, target.context_size // 2)),
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
        }
    )


def _opencode(folder: Path, target: _Target) -> _Profile:
    model = f"antiphon/{target.model}"
    limit = {"context": target.context_size, "output": min(_MAX_OUTPUT, target.context_size // 2)}
    _write_json(
        folder / "opencode.json",
        {
            "model": model,
            "small_model": model,
            "autoupdate": False,
            "share": "disabled",
            "enabled_providers": ["antiphon"],
            "provider": {
                "antiphon": {
                    "npm": "@ai-sdk/openai",
                    "name": "Antiphon",
                    "options": {"baseURL": target.server.url, "apiKey": target.key},
                    "models": {target.model: {"name": target.model, "limit": limit}},
                }
            },
        },
    )
    folders = ("CONFIG", "DATA", "CACHE", "STATE")
    return _Profile(
        environment={
            **{f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in folders},
            "OPENCODE_CONFIG": str(folder / "opencode.json"),
            "OPENCODE_DISABLE_AUTOUPDATE": "true",
            "OPENCODE_DISABLE_MODELS_FETCH": "true",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "true",
        }
    )


def _pi(folder: Path, target: _Target) -> _Profile:
    entry = {
        "id": target.model,
        "contextWindow": target.context_size,
        "maxTokens": min(_MAX_OUTPUT, target.context_size // 2),
    }
    provider = {
        "baseUrl": target.server.url,
        "api": "openai-responses",
        "apiKey": target.key,
        "models": [entry],
    }
    _write_json(folder / "models.json", {"providers": {"antiphon": provider}})
    return _Profile(
        arguments=("--provider", "antiphon", "--model", target.model),
        environment={
            "PI_CODING_AGENT_DIR": str(folder),
            "PI_OFFLINE": "1",
            "PI_SKIP_VERSION_CHECK": "1",
            "PI_TELEMETRY": "0",
        },
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


CLIENTS: Mapping[str, _Client] = {
    "codex": _Client(package="@openai/codex", write=_codex),
    "claude": _Client(package="@anthropic-ai/claude-code", write=_claude, endpoint="/v1/messages"),
    "opencode": _Client(package="opencode-ai", write=_opencode),
    "pi": _Client(package="@earendil-works/pi-coding-agent", write=_pi),
}
