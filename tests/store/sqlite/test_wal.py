"""Damaged pages of SQLite's write-ahead log are noticed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from antiphon.store.sqlite.store import SqliteStore
from antiphon.store.sqlite.wal import scan_wal
from antiphon.testing.store_checks.responses import make_response

FRAME = 24 + 4096


async def killed(folder: Path) -> Path:
    """A database whose process was killed: its log holds 20 responses."""
    store = await SqliteStore.open(folder / "open.db")
    for n in range(20):
        await store.save("t", make_response(str(n)))
    for suffix in ("", "-wal"):
        shutil.copy(folder / f"open.db{suffix}", folder / f"killed.db{suffix}")
    await store.close()
    return folder / "killed.db"


async def opened(path: Path) -> tuple[list[Any], int]:
    """Open the store. Return the errors it logs, and how many of the responses it has."""
    with capture_logs() as lines:
        store = await SqliteStore.open(path)
    found = [await store.load("t", f"resp_{n}") for n in range(20)]
    await store.close()
    return [line for line in lines if line["log_level"] == "error"], sum(map(bool, found))


def damage(path: Path, at: int) -> None:
    wal = bytearray(Path(f"{path}-wal").read_bytes())
    wal[at] ^= 0xFF
    Path(f"{path}-wal").write_bytes(wal)


async def test_intact_log_is_read_without_a_complaint(tmp_path: Path) -> None:
    assert await opened(await killed(tmp_path)) == ([], 20)


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
async def test_damaged_page_is_logged(tmp_path: Path, part: float) -> None:
    path = await killed(tmp_path)
    frames = (Path(f"{path}-wal").stat().st_size - 32) // FRAME
    damage(path, 32 + int(frames * part) * FRAME + 2_000)
    errors, found = await opened(path)
    assert found < 20
    assert len(errors) == 1 and errors[0]["lost_commits"] > 0
    assert "damaged" in errors[0]["event"]


async def test_damaged_header_is_logged(tmp_path: Path) -> None:
    path = await killed(tmp_path)
    damage(path, 17)
    errors, found = await opened(path)
    assert (len(errors), found) == (1, 0)


async def test_log_cut_off_in_a_frame_is_not_damaged(tmp_path: Path) -> None:
    """A process killed while it writes leaves part of a transaction that nobody was told of."""
    path = await killed(tmp_path)
    wal = Path(f"{path}-wal")
    content = wal.read_bytes()
    wal.write_bytes(content[: len(content) - 1_000])
    errors, found = await opened(path)
    assert errors == [] and found == 19


async def test_frames_of_an_earlier_log_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (x)")
        for n in range(50):
            connection.execute("INSERT INTO t VALUES (?)", (n,))
            connection.commit()
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        assert len(scan_wal(path).commits) == 1


async def test_damaged_database_is_logged(tmp_path: Path) -> None:
    path = await killed(tmp_path)
    await opened(path)
    content = bytearray(path.read_bytes())
    for at in range(4096 * 3, len(content), 4096):
        content[at : at + 100] = b"\x77" * 100
    path.write_bytes(content)
    from antiphon.errors import SetupError, StoreError

    with capture_logs() as lines:
        try:
            store = await SqliteStore.open(path)
        except SetupError:
            return  # damaged beyond opening: the message says so
        with pytest.raises(StoreError):
            for n in range(20):
                await store.load("t", f"resp_{n}")
            await store.save("t", make_response("x"))
        await store.close()
    assert any("damaged" in line["event"] for line in lines)
