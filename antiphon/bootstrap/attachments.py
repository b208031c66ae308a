"""The fetcher of URLs and the reader of documents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

from msgspec.structs import replace

from antiphon.attachments.documents import DocumentReader
from antiphon.attachments.fetch import Fetcher
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.security.ssrf import parse_network
from antiphon.support.installation import needs_extra
from antiphon.support.log import Log

from .containers import AUTO, BUBBLEWRAP, OFF


@asynccontextmanager
async def open_fetcher(settings: Settings) -> AsyncIterator[Fetcher | None]:
    """Context manager that yields the URL fetcher. It yields None if fetching is off, or if it is
    ``auto`` and the extra ``fetch`` is not installed."""
    networks = tuple(
        parse_network(text, "fetch_allowed_networks") for text in settings.fetch_allowed_networks
    )
    is_missing = settings.fetch_urls == "auto" and find_spec("aiohttp") is None and not networks
    if not settings.fetch_urls or is_missing:
        yield None
        return
    fetcher = Fetcher.open(
        max_bytes=settings.max_file_bytes, clock=time.monotonic, networks=networks
    )
    try:
        yield fetcher
    finally:
        await fetcher.close()


def why_no_fetcher(settings: Settings) -> str:
    """Return why a server with these settings fetches no URLs, and what to do."""
    if not settings.fetch_urls:
        return "The setting fetch_urls is false."
    return needs_extra("The HTTP client is not installed", "fetch")


@asynccontextmanager
async def open_reader(settings: Settings, log: Log) -> AsyncIterator[DocumentReader | None]:
    """Open a reader that extracts the text of documents in a sandbox.

    Yields None if the extraction library is not installed, or if bubblewrap is not used or does not
    work. Documents are then read in a subprocess without a sandbox. If bubblewrap does not work,
    the reason is logged.
    """
    from antiphon.attachments.sandboxed_reader import SandboxedReader, mounts

    if settings.sandbox.kind == OFF or not (needed := mounts()):
        yield None
        return
    if settings.sandbox.kind not in (AUTO, BUBBLEWRAP):
        log.info(
            "documents are read in a subprocess without a sandbox", sandbox=settings.sandbox.kind
        )
        yield None
        return
    from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap
    from antiphon.sandbox.cgroups import ControlGroups

    python = None if settings.sandbox.python is None else str(settings.sandbox.python)
    async with AsyncExitStack() as stack:
        reader = None
        try:
            setup = replace(await asyncio.to_thread(BoxSetup.detect, python), mounts=needed)
            sandbox = Bubblewrap(setup, groups=await asyncio.to_thread(ControlGroups.detect))
            stack.push_async_callback(sandbox.close)
            reader = SandboxedReader(sandbox, setup.python)
            await reader.check()
        except SetupError as error:
            report = log.info if settings.sandbox.kind == AUTO else log.warning
            report(f"documents are read without a sandbox: {error}")
            reader = None
        yield reader
