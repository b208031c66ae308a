"""Run the demo: start a server whose model is a script, and send it a fixed series of requests.
This series is called the tour. It shows what the API can do."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.support.tasks import BackgroundTasks

from .player import play
from .script import MODEL, PAGES, demo_settings, write_scenes

if TYPE_CHECKING:
    from antiphon.workers.setup import StartReport

_WARNING = (
    f"The model {MODEL} is a script, not a language model: its words were written in advance.\n"
    "The tools are real: search, vectors, sandbox, MCP server and approval."
)


async def run_demo(settings: Settings, show: Callable[[str], None], *, once: bool) -> None:
    """Start the demo's server and send it the requests of the tour (a fixed series of requests). If
    ``once`` is true, the server stops after the tour. Otherwise it runs until Ctrl-C.

    ``show`` prints a text. Raises ``SetupError`` if the server does not start, and, if ``once`` is
    true, also if a request of the tour fails.
    """
    from antiphon.bootstrap.serve import serve
    from antiphon.models.packaged_embedder import with_packaged_embedder
    from antiphon.tools.web_search.index import PageIndex

    with tempfile.TemporaryDirectory(prefix="antiphon-demo-") as name:
        folder = Path(name)
        prepared = with_packaged_embedder(demo_settings(settings, folder))
        index = PageIndex(prepared.web_search.index)
        await index.add(PAGES)
        await index.close()
        ready = await _ready_tools(prepared)
        write_scenes(folder / "tour.toml", ready)
        tours = BackgroundTasks("tour")
        tour: asyncio.Task[None] | None = None

        def started(serving: StartReport) -> None:
            nonlocal tour
            show(f"Antiphon demo at {serving.url}/v1\n{_WARNING}\n")
            work = _take_tour(serving.url, ready, show, once=once)
            tour = tours.start(work, is_awaited=True)

        try:
            await serve(prepared, started)
        finally:
            await tours.close()
        if tour is not None and not tour.cancelled():
            tour.result()


async def _ready_tools(settings: Settings) -> frozenset[str]:
    """Return the types of the tools that work on this machine."""
    from antiphon.bootstrap.app import find_capabilities

    found = await find_capabilities(settings)
    return frozenset(each.name.partition(" ")[0] for each in found if each.problem is None)


async def _take_tour(
    url: str, ready: frozenset[str], show: Callable[[str], None], *, once: bool
) -> None:
    try:
        await asyncio.to_thread(play, url, ready, show)
        if not once:
            show(
                f"\nThat was the tour. The server keeps running: open {url}/ or send the requests"
                "\nabove again. Ctrl-C stops it."
            )
    except SetupError as error:
        show(f"\n{error}")
        if once:
            raise
    finally:
        if once:
            signal.raise_signal(signal.SIGTERM)
