"""``antiphon launch``: start a coding agent against a running server.

The agent gets a temporary profile, i.e. a folder with its configuration. When the agent ends, the
profile is deleted, and background processes of the agent end. Its sessions, and the list of folders
that the user trusts, are kept in Antiphon's state folder, so that a later launch can resume a
session. The user's own configuration of the agent is not used, unless the user asks for it.

By default, such agents also send requests to other servers (usage statistics, checks for updates).
Antiphon turns these requests off with documented settings of the agent.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.config.folders import state_folder
from antiphon.config.load import child_environment
from antiphon.config.options import literal
from antiphon.errors import SetupError

from .client import Server, remember_server

#: The context window in tokens that a client gets if the server does not know the model's.
_CONTEXT = 32_768
_MAX_OUTPUT = 8_000
#: Environment variable that all processes of a launched agent inherit. Its value is the profile.
_MARK = "ANTIPHON_LAUNCH_PROFILE"


class _Target(Struct, frozen=True, kw_only=True):
    """The server and the model that a coding agent uses. ``key``: the API key. It is never empty,
    because some agents require a key. ``reads_images``: whether the model sees images.
    ``reasons``: whether the model may have a reasoning effort, which the user chooses in the agent.
    ``own_profile``: whether the agent uses the user's own configuration, in which only the server
    and the model are replaced."""

    server: Server
    model: str
    context_size: int
    key: str
    reads_images: bool = False
    reasons: bool = False
    own_profile: bool = False

    @property
    def max_output(self) -> int:
        return min(_MAX_OUTPUT, self.context_size // 2)

    @property
    def inputs(self) -> list[str]:
        return ["text", "image"] if self.reads_images else ["text"]


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
    - ``min_context``: the number of tokens that the model's context should have at least. The
      agent's instructions and tools take about a third of it.
    - ``kept``: files and folders of the profile that are kept for later launches. The names of
      folders end with a slash.
    - ``endpoint``: path of the endpoint that the agent needs.
    """

    package: str
    write: Callable[[Path, _Target], _Profile]
    min_context: int
    kept: tuple[str, ...]
    endpoint: str = "/v1/responses"


def launch(
    server: Server,
    client: str,
    arguments: Sequence[str],
    *,
    model: str | None = None,
    own_profile: bool = False,
) -> int:
    """Run a coding agent until it ends, and return its exit code. ``client``: the agent's command,
    such as ``codex``. ``arguments``: the user's arguments for the agent. ``model``: name of the
    model; None means the server's first model. ``own_profile``: whether the agent uses the user's
    own configuration. Raises ``SetupError``."""
    known = CLIENTS[client]
    program = shutil.which(client)
    if program is None:
        raise SetupError(f"{client} is not installed: npm install -g {known.package}")
    target = _target(server, model, own_profile=own_profile)
    if not server.has_endpoint(known.endpoint):
        raise SetupError(f"{client} needs {known.endpoint}, which {server.url} does not offer")
    remember_server(server)
    if target.context_size < known.min_context:
        sys.stderr.write(
            f"The context of {target.model} has {target.context_size} tokens;"
            f" {client} needs about {known.min_context}.\n"
        )
    kept = state_folder() / "launch" / client
    with tempfile.TemporaryDirectory(
        prefix=f"antiphon-{client}-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        _restore(known.kept, kept, folder)
        profile = known.write(folder, target)
        environment = {**profile.environment, _MARK: name}
        try:
            return _run([program, *profile.arguments, *arguments], environment)
        finally:
            end_leftovers(f"{_MARK}={name}")
            _keep(known.kept, folder, kept)


def _restore(names: Sequence[str], kept: Path, folder: Path) -> None:
    """Put what an earlier launch has kept into a profile. Folders are linked, so that what the
    agent writes there is kept even if this process is killed."""
    for name in names:
        source, place = kept / name, folder / name
        with suppress(OSError):  # a read-only home only loses the sessions
            if name.endswith("/"):
                source.mkdir(parents=True, exist_ok=True, mode=0o700)
                place.symlink_to(source, target_is_directory=True)
            elif source.exists():
                shutil.copyfile(source, place)


def _keep(names: Sequence[str], folder: Path, kept: Path) -> None:
    """Keep the files of a profile for later launches."""
    for name in names:
        if not name.endswith("/"):
            with suppress(OSError):
                kept.mkdir(parents=True, exist_ok=True, mode=0o700)
                shutil.copyfile(folder / name, kept / name)


def _target(server: Server, model: str | None, *, own_profile: bool) -> _Target:
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
        reads_images="image" in catalog[name].get("input_modalities", ()),
        reasons=bool(catalog[name].get("supported_reasoning_levels")),
        own_profile=own_profile,
    )


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the coding agent in this terminal until it ends, and return its exit status. On Ctrl-C,
    this process does nothing, because the coding agent handles it. A request to end is passed on to
    the agent, so that this process can still delete the profile."""
    agent: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: object) -> None:
        if agent is not None and number != signal.SIGINT:
            agent.send_signal(number)

    # A handler, unlike SIG_IGN, is not inherited by the client.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, pass_on) for number in numbers]
    try:
        agent = subprocess.Popen(command, env=child_environment(environment))
        return agent.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


# --- profiles ------------------------------------------------------------------------------------


def _codex(folder: Path, target: _Target) -> _Profile:
    url = target.server.url
    settings: dict[str, Any] = {
        "model": target.model,
        "model_provider": "antiphon",
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
    }
    provider = {
        # Codex lets the server compact the conversation only if the provider has this name.
        "name": "OpenAI",
        "base_url": url,
        "env_key": "ANTIPHON_API_KEY",
        "wire_api": "responses",
        "supports_websockets": True,
        "model_catalog_url": f"{url}/models",
    }
    environment = {"ANTIPHON_API_KEY": target.key}
    if target.own_profile:
        settings["model_providers.antiphon"] = provider
        options = (("-c", f"{name}={literal(value)}") for name, value in settings.items())
        return _Profile(
            arguments=tuple(each for option in options for each in option), environment=environment
        )
    path = folder / "config.toml"
    if (trusted := _trusted_projects(path)) is not None:
        settings["projects"] = trusted
    settings["model_providers"] = {"antiphon": provider}
    lines = (f"{name} = {literal(value)}\n" for name, value in settings.items())
    path.write_text("".join(lines), encoding="utf-8")
    return _Profile(environment={**environment, "CODEX_HOME": str(folder)})


def _trusted_projects(path: Path) -> object:
    """Return the folders that the user trusts, from the configuration of an earlier launch."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).get("projects")
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return None


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
    # Skips the questions of a first start, except the question whether to trust the folder. Claude
    # Code asks it once for each folder, and writes the answer into this file.
    state = folder / ".claude.json"
    _write_json(state, {**_read_json(state), "hasCompletedOnboarding": True})
    # Auto mode would check actions on Anthropic's server. The registration of deep links would
    # write to the home folder.
    settings = ("disableAutoMode", "disableDeepLinkRegistration")
    _write_json(folder / "settings.json", dict.fromkeys(settings, "disable"))
    return _Profile(
        environment={
            **dict.fromkeys(_CLAUDE_SERVERS, ""),
            **dict.fromkeys(_CLAUDE_MODELS, target.model),
            **({} if target.own_profile else {"CLAUDE_CONFIG_DIR": str(folder)}),
            "ANTHROPIC_BASE_URL": target.server.root_url,
            "ANTHROPIC_AUTH_TOKEN": target.key,
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.context_size),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.max_output),
            **({"CLAUDE_CODE_ALWAYS_ENABLE_EFFORT": "1"} if target.reasons else {}),
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
        }
    )


def _opencode(folder: Path, target: _Target) -> _Profile:
    model = f"antiphon/{target.model}"
    entry = {
        "name": target.model,
        "limit": {"context": target.context_size, "output": target.max_output},
        "attachment": target.reads_images,
        "reasoning": target.reasons,
        "modalities": {"input": target.inputs, "output": ["text"]},
    }
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
                    "models": {target.model: entry},
                }
            },
        },
    )
    folders = () if target.own_profile else ("CONFIG", "DATA", "CACHE", "STATE")
    return _Profile(
        environment={
            **{f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in folders},
            # Read after the user's configuration, whose settings it replaces.
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
        "maxTokens": target.max_output,
        "input": target.inputs,
        "reasoning": target.reasons,
    }
    provider = {
        "baseUrl": target.server.url,
        "api": "openai-responses",
        "apiKey": target.key,
        "models": [entry],
    }
    own = Path.home() / ".pi" / "agent"
    models = _read_json(own / "models.json") if target.own_profile else {}
    providers = {**models.get("providers", {}), "antiphon": provider}
    _write_json(folder / "models.json", {**models, "providers": providers})
    if target.own_profile and own.is_dir():
        # This agent has no other place for a provider, so its folder is a copy made of links.
        for path in own.iterdir():
            place = folder / path.name
            if place.is_symlink():
                place.unlink()
            if path.name != "models.json":
                place.symlink_to(path)
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


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Returns an empty dict if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


CLIENTS: Mapping[str, _Client] = {
    "codex": _Client(
        package="@openai/codex",
        write=_codex,
        min_context=24_000,
        kept=("sessions/", "archived_sessions/", "config.toml", "history.jsonl"),
    ),
    "claude": _Client(
        package="@anthropic-ai/claude-code",
        write=_claude,
        min_context=32_000,
        kept=("projects/", "file-history/", "plans/", ".claude.json", "history.jsonl"),
        endpoint="/v1/messages",
    ),
    "opencode": _Client(
        package="opencode-ai", write=_opencode, min_context=24_000, kept=("data/", "state/")
    ),
    "pi": _Client(
        package="@earendil-works/pi-coding-agent",
        write=_pi,
        min_context=8_000,
        kept=("sessions/",),
    ),
}


#: Seconds after which processes that ignore a request to end are killed.
_GRACE_S = 3.0
_CHECK_S = 0.05


def end_leftovers(variable: str) -> None:
    """End all other processes that have this variable (``NAME=value``) in their environment. This
    works on Linux; on other systems, it does nothing."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_S
        for pid in _processes(variable):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, kind)
        while any(_processes(variable)):
            if time.monotonic() > deadline:
                break
            time.sleep(_CHECK_S)
        else:
            return


def _processes(variable: str) -> Iterator[int]:
    wanted = variable.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if int(folder.name) != os.getpid() and wanted in (
                folder / "environ"
            ).read_bytes().split(b"\0"):
                yield int(folder.name)
