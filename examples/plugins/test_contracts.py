"""Run the contract checks on the plug-ins, with pytest and ``asyncio_mode = "auto"``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from counting_engine import CountingEngine
from glossary_tool import Glossary
from journal_store import JournalStore
from length_sandbox import open_sandbox
from quill_dialect import create_dialect

from antiphon import Settings
from antiphon.dialects.base import DialectOptions
from antiphon.inference.tokens import ModelCard
from antiphon.testing.dialect_check import check_dialect
from antiphon.testing.engine_check import check_closed, check_engine
from antiphon.testing.sandbox_check import FILE_CHECKS, check_sandbox
from antiphon.testing.store_check import check_store
from antiphon.testing.tokenizer import END, ByteTokenizer
from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.wire.tools import WebSearch


async def test_engine() -> None:
    engine = CountingEngine("counting")
    await check_engine(engine)
    await check_closed(engine)


def test_dialect() -> None:
    card = ModelCard(name="quill", context_size=1000, eos_token=END)
    tokenizer = ByteTokenizer()
    check_dialect(create_dialect(card, tokenizer, DialectOptions()), tokenizer)


async def test_tool() -> None:
    case = ToolCheckCase(
        tool=WebSearch(),
        successful_call=("look_up", '{"term": "lease"}'),
        failing_call=("look_up", '{"term": "leash"}'),
    )
    await check_tool(Glossary({"lease": "The right to work on a run."}), case)


async def test_store(tmp_path: Path) -> None:
    @asynccontextmanager
    async def open_new() -> AsyncIterator[JournalStore]:
        store = JournalStore(tmp_path / "responses.jsonl")
        try:
            yield store
        finally:
            await store.close()

    await check_store(open_new)


async def test_sandbox() -> None:
    # This sandbox runs no code. For a sandbox that runs code, leave out FILE_CHECKS.
    await check_sandbox(await open_sandbox(Settings()), FILE_CHECKS)
