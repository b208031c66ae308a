"""``antiphon models``: list, load, unload and download models, on this machine and on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from antiphon.config.load import LoadedSettings
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.models.download import progress_bar, pull, resolve
from antiphon.models.gpu import usable_gpu
from antiphon.models.suggestions import SUGGESTIONS, best_fit, problem, this_machine
from antiphon.support.installation import antiphon_command

from .client import Json, RequestFailed, Server, find_server
from .commands.base import print_line


def run(loaded: LoadedSettings, action: str, name: str | None) -> None:
    """Run one action of ``antiphon models``. Raises ``SetupError``."""
    if action == "list":
        return _list(loaded)
    if action == "suggest":
        return _suggest()
    if name is None:
        raise SetupError(f"antiphon models {action}: name a model")
    ACTIONS[action](loaded, name)


def pull_here(source: str, settings: Settings) -> None:
    """Download a model to the cache folder of this machine and print its path."""
    with progress_bar() as progress:
        path = asyncio.run(pull(source, settings.cache_dir, progress))
    print_line(str(path))


def _suggest() -> None:
    """Print the suggested models, and mark those that fit into the memory of this machine."""
    machine = this_machine(usable_gpu())
    best = best_fit(machine)
    print_line(f"Memory for a model on this machine: {_size(machine.memory)}")
    for each in SUGGESTIONS:
        note = "best fit" if each is best else problem(each, machine) or "fits"
        print_line(
            f"  {each.name:<14} {each.size_gb:>5.1f} GB  {each.licence:<11} {note:<19}"
            f" {each.good_for}"
        )
        print_line(f"    {antiphon_command(f'serve {each.source}')}")


def _list(loaded: LoadedSettings) -> None:
    """Print the models of the running server. If no server runs, print the configured models and
    the downloaded files."""
    server = find_server(loaded)
    try:
        listed = server.get("/antiphon/models")
    except RequestFailed:
        return _list_files(loaded.settings)
    print_line(f"{server.root_url}")
    for model in listed["data"]:
        print_line("  " + _describe(model))
    memory = listed["memory"]
    budget = f" of {_size(memory['budget_bytes'])}" if memory["budget_bytes"] else ""
    print_line(f"  memory: about {_size(memory['used_bytes'])}{budget}")


def _list_files(settings: Settings) -> None:
    cache = settings.cache_dir
    for name, model in settings.models.items():
        there = Path(model.source).expanduser()
        path = there if there.exists() else resolve(model.source, cache)
        print_line(f"{name}  {model.source}  {path or 'not downloaded yet'}")
    for file in sorted(cache.rglob("*.gguf")):
        print_line(f"{file}  {file.stat().st_size / 1e6:.0f} MB")


def _load(loaded: LoadedSettings, name: str) -> None:
    print_line(_describe(find_server(loaded).post(_path(name, "load"))))


def _unload(loaded: LoadedSettings, name: str) -> None:
    print_line(_describe(find_server(loaded).post(_path(name, "unload"))))


def _pull(loaded: LoadedSettings, name: str) -> None:
    """Download the files of a model. If the running server has a model with this name, the server
    downloads its files. Otherwise ``name`` is a source, and this machine downloads the model."""
    server = find_server(loaded)
    try:
        server.get(_path(name))
    except RequestFailed:
        return pull_here(name, loaded.settings)
    print_line(_describe(_pull_there(server, name)))


def _pull_there(server: Server, name: str) -> Json:
    with progress_bar() as progress, closing(server.stream(_path(name, "pull"))) as events:
        for event in events:
            if event["type"] == "antiphon.pull.progress":
                progress(event["file"], event["bytes"], event["total_bytes"])
            elif event["type"] == "antiphon.pull.failed":
                raise RequestFailed(event["message"])
            elif event["type"] == "antiphon.pull.completed":
                model: Json = event["model"]
                return model
    raise RequestFailed(f"{server.url}: the download was interrupted; run the command again")


#: Action → the function that runs it for one model.
ACTIONS: Mapping[str, Callable[[LoadedSettings, str], None]] = {
    "load": _load,
    "unload": _unload,
    "pull": _pull,
}


def _path(name: str, action: str | None = None) -> str:
    path = f"/antiphon/models/{quote(name)}"
    return path if action is None else f"{path}/{action}"


def _describe(model: Json) -> str:
    """Return one line about a model. It begins with the model's name and state. Then it states the
    memory that the model needs, if this is known; "not downloaded yet", if that is so; and the
    number of running requests, if there are any."""
    status = model["status"]
    state = status["value"] + (f" ({status['stage']})" if status.get("stage") else "")
    parts = [model["id"], state]
    if model["memory_bytes"]:
        parts.append(f"about {_size(model['memory_bytes'])} of memory")
    if model["source"] and not model["size_bytes"]:
        parts.append("not downloaded yet")
    if model["running_requests"]:
        parts.append(f"{model['running_requests']} running requests")
    return "  ".join(parts)


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
