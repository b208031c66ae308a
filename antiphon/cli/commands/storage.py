"""The commands about stored data: ``files``, ``migrate`` and ``index``."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack
from functools import partial

from antiphon.config.load import LoadedSettings
from antiphon.config.settings import Settings
from antiphon.errors import SetupError, StoreError
from antiphon.support.installation import antiphon_command

from .base import Command, print_line


def _index_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["add", "remove", "list", "count"],
        help="add or remove pages, list the pages with their titles, or count them",
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help="add: folders, files and URLs of pages; remove, list: the beginning of the URLs of"
        " pages",
    )
    parser.add_argument(
        "--as",
        dest="prefix",
        help="beginning of the URLs that added files get in the index (default: file:FOLDER/)",
    )


def _files_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["migrate", "collect"],
        help="migrate: move contents to the storage that the setting `files` names; collect: delete"
        " contents that belong to no file, as servers do every day",
    )
    parser.add_argument(
        "--from",
        dest="source",
        default="store",
        metavar="URL",
        help="storage that holds the contents now: `store` (default) or a value of the setting"
        " `files`",
    )


def _index(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    asyncio.run(_run_index(loaded.settings, arguments))


async def _run_index(settings: Settings, arguments: argparse.Namespace) -> None:
    from antiphon.attachments.documents import Documents
    from antiphon.bootstrap.attachments import open_fetcher
    from antiphon.models.download import progress_bar
    from antiphon.tools.web_search.index import PageIndex
    from antiphon.tools.web_search.index_builder import add_source

    if arguments.action in ("add", "remove") and not arguments.what:
        raise SetupError(
            f"antiphon index {arguments.action}: name at least one folder, file or URL"
        )
    if arguments.action != "add" and not settings.web_search.index.is_file():
        command = antiphon_command("index add FOLDER")
        raise SetupError(f"No index at {settings.web_search.index}. To make one: {command}")
    async with AsyncExitStack() as stack:
        index = PageIndex(settings.web_search.index)
        stack.push_async_callback(index.close)
        fetcher = await stack.enter_async_context(open_fetcher(settings))
        documents = Documents()
        for what in arguments.what or ([""] if arguments.action == "list" else []):
            if arguments.action == "remove":
                print_line(f"{what}  {await index.remove(what)} removed")
            elif arguments.action == "list":
                for url, title in await index.list(what):
                    print_line(f"{url}  {title}")
            elif arguments.action == "add":
                with progress_bar("files") as progress:
                    added = await add_source(
                        index,
                        what,
                        documents=documents,
                        prefix=arguments.prefix,
                        fetcher=fetcher,
                        progress=partial(progress, what),
                    )
                removed = f", {added.removed_count} removed" if added.removed_count else ""
                print_line(f"{what}  {added.pages} pages{removed}")
                for reason in added.skip_reasons:
                    print_line(f"  {reason}")
        print_line(f"{settings.web_search.index}  {await index.count()} pages in total")


def _files(loaded: LoadedSettings, arguments: argparse.Namespace) -> int:
    from ..files import collect, migrate

    if arguments.action == "migrate":
        return asyncio.run(migrate(loaded.settings, arguments.source, print_line))
    asyncio.run(collect(loaded.settings, print_line))
    return 0


def _migrate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rewrite",
        action="store_true",
        help="also write all rows again: encrypted with the first key in `encryption_keys` if"
        " `store_encrypted` is set, otherwise unencrypted; stop all servers first",
    )


def _migrate(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    asyncio.run(_run_migrations(loaded.settings, rewrites=arguments.rewrite))


async def _run_migrations(settings: Settings, *, rewrites: bool) -> None:
    from antiphon.bootstrap.storage import store_cipher
    from antiphon.store import open_store
    from antiphon.store.common.row_cipher import rewrite_store

    cipher = store_cipher(settings, keeps=not rewrites)
    store = await open_store(settings.store, vectors=settings.vectors, cipher=cipher)
    try:
        print_line("The tables of the store are up to date.")
        if rewrites:
            print_line(f"{await rewrite_store(store, cipher)} rows written again.")
    except StoreError as error:
        raise SetupError(f"store: {error.message}") from None
    finally:
        await store.close()


INDEX = Command(
    help="Manage the local index that the tool web_search searches.",
    run=_index,
    groups=("Tools", "Fetching"),
    takes="add|remove|list|count [WHAT …] ",
    arguments=_index_arguments,
)

FILES = Command(
    help="Move the contents of uploaded files, or delete unused contents.",
    run=_files,
    groups=("Storage",),
    takes="migrate|collect ",
    arguments=_files_arguments,
)

MIGRATE = Command(
    help="Create or upgrade the tables of the store, as a server does when it starts.",
    run=_migrate,
    groups=("Storage",),
    arguments=_migrate_arguments,
)
