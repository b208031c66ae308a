"""Download files from Hugging Face with Hugging Face's own library (the extra ``hub``).

The library handles repositories, credentials and the configured mirror. Antiphon writes the
received data to a partial file of its own, because the library deletes its partial file when a
transfer fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from antiphon.errors import SetupError
from antiphon.support.installation import needs_packages
from antiphon.support.tasks import running

SHA256 = re.compile(r"[0-9a-f]{64}")
#: Seconds until a search ends without a result. The library itself tries again for half a minute.
_SEARCH_S = 5.0

#: Class name of an error of the library → the reason in words for the operator.
REASONS = {
    "GatedRepoError": "its owner must grant you access, and HF_TOKEN must be yours",
    "RepositoryNotFoundError": "there is no such repository, or it is private",
    "EntryNotFoundError": "the repository has no such file",
    "RemoteEntryNotFoundError": "the repository has no such file",
    "HFValidationError": "that is no repository's name",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
    "ConnectError": "there is no connection to Hugging Face",
}


class _Cancelled(Exception):
    """Raised in a callback of the library ``huggingface_hub`` to stop a transfer that was
    cancelled."""


class Hub:
    """Lists and downloads files of Hugging Face. The constructor raises ``SetupError`` if the extra
    ``hub`` is not installed."""

    def __init__(self, endpoint: str | None = None) -> None:
        with needs_packages("huggingface_hub is not installed", "hub"):
            import huggingface_hub
        # The library's own handler would write each log line a second time.
        logging.getLogger("huggingface_hub").handlers.clear()
        self._api = huggingface_hub.HfApi(endpoint=endpoint)

    async def list_files(self, repo: str) -> list[str]:
        """Return the names of the repository's files."""
        return await asyncio.to_thread(self._call, repo, self._api.list_repo_files, repo)

    async def search(self, text: str, limit: int) -> list[tuple[str, int | None, str | None]]:
        """Search repositories with GGUF files, the most downloaded first. Return their names,
        their downloads in the last month and their licences. Raises ``SetupError``."""

        def find() -> list[tuple[str, int | None, str | None]]:
            found = self._api.list_models(
                search=text,
                filter="gguf",
                sort="downloads",
                limit=limit,
                expand=["downloads", "tags"],
            )
            return [(each.id, each.downloads, _licence(each.tags or ())) for each in found]

        work = asyncio.to_thread(self._call, "Hugging Face", find, verb="searched")
        try:
            return await asyncio.wait_for(work, _SEARCH_S)
        except TimeoutError:
            raise SetupError("Hugging Face cannot be searched: it does not answer.") from None

    async def fetch(
        self, repo: str, name: str, target: Path, progress: Callable[[str, int, int | None], None]
    ) -> None:
        """Download the file ``name`` of a repository to ``target``. Does nothing if ``target``
        exists. Resumes an interrupted transfer.

        If the call is cancelled, the transfer stops after the current block of data.
        """
        if target.is_file():
            return
        cancelled = threading.Event()

        def step(there: int, total: int | None) -> None:
            if cancelled.is_set():
                raise _Cancelled
            progress(name, there, total)

        work = asyncio.to_thread(self._call, repo, self._transfer, repo, name, target, step)
        async with running(work) as transfer:
            try:
                await asyncio.shield(transfer)
            except asyncio.CancelledError:
                cancelled.set()
                with suppress(SetupError, _Cancelled):  # the thread still writes to the file
                    await transfer
                raise

    def _transfer(
        self, repo: str, name: str, target: Path, step: Callable[[int, int | None], None]
    ) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils._headers import build_hf_headers

        url = hf_hub_url(repo, name, endpoint=self._api.endpoint)
        about = self._api.get_hf_file_metadata(url=url)
        etag = str(about.etag or "")
        # The name of the partial file contains the version, so only a transfer of the same version
        # is resumed.
        partial = target.with_name(f"{target.name}.{etag[:16]}.incomplete")
        with partial.open("ab") as out:
            http_get(
                url,
                out,
                resume_size=out.tell(),
                headers=build_hf_headers(token=self._api.token),
                expected_size=about.size,
                tqdm_class=_tqdm_class(step),
            )
        if SHA256.fullmatch(etag) and sha256_of(partial) != etag:
            partial.unlink()
            raise SetupError(f"{name} of {repo} arrived damaged; pull it again.")
        os.replace(partial, target)

    def _call(
        self, repo: str, call: Callable[..., Any], *arguments: object, verb: str = "pulled"
    ) -> Any:
        try:
            return call(*arguments)
        except (SetupError, _Cancelled):
            raise
        except Exception as error:
            reason = REASONS.get(type(error).__name__) or _first_line(error)
            raise SetupError(f"{repo} cannot be {verb}: {reason}.") from error


def _licence(tags: Iterable[str]) -> str | None:
    marks = (tag.removeprefix("license:") for tag in tags if tag.startswith("license:"))
    return next(marks, None)


def _first_line(error: Exception) -> str:
    """Return the reason of an error in one line. For an error of the operating system, such as a
    full disk, return the system's message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().partition("\n")[0] or type(error).__name__


def sha256_of(path: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tqdm_class(step: Callable[[int, int | None], None]) -> Any:
    """Return a replacement for the progress bar class ``tqdm``. Instead of showing a bar, it calls
    ``step`` with the number of bytes received so far and the total number."""

    @contextlib.contextmanager
    def bar(*, total: int | None = None, initial: int = 0, **_: object) -> Iterator[Any]:
        yield _ProgressBar(step, initial, total)

    return bar


class _ProgressBar:
    def __init__(
        self, step: Callable[[int, int | None], None], there: int, total: int | None
    ) -> None:
        self.step = step
        self.done = there
        self.total = total
        step(there, total)

    def update(self, count: float | None = 1) -> None:
        self.done += int(count or 0)
        self.step(self.done, self.total)
