"""The SQLite store: durability, file locking, and storage costs."""

from __future__ import annotations

import ast
import asyncio
import errno
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.errors import RunError, SetupError
from antiphon.store import open_store
from antiphon.store import sqlite as sqlite_package
from antiphon.store.base import Retention
from antiphon.store.records import (
    Append,
    ClaimQuery,
    ConversationLock,
    NewRun,
    Reservation,
    RunEnd,
)
from antiphon.store.sql.queries import for_sqlite, migrations
from antiphon.store.sqlite.database import Database
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import (
    batch,
    begin_run,
    ended_response,
    job,
    queued_response,
)

ROOT = Path(__file__).parents[3]
SAVING = """
import asyncio, sys
from pathlib import Path
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_checks.responses import make_response

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    async def one(first):
        for n in range(100000):
            name = f"{first}_{n}"
            await store.save("t", make_response(name))
            print(f"resp_{name}", flush=True)
    await asyncio.gather(*(one(f"{sys.argv[2]}_{k}") for k in range(4)))

asyncio.run(main())
"""


APPENDING = """
import asyncio, sys
from pathlib import Path
from antiphon.store.records import Append, ClaimQuery, NewRun
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_checks.runs import batch, job, queued_response

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    for k in range(4):
        name = f"{sys.argv[2]}_{k}"
        run = NewRun(job=job(name), stored=queued_response(name), batch=batch(0, 2))
        await store.runs.create(run)
    query = ClaimQuery(owner=sys.argv[2], models=["m"], limit=99, lease_s=3600)
    claims = await store.runs.claim(query)
    async def go_on(claims):
        at = [(await store.runs.load_batches(claim))[-1].last + 1 for claim in claims]
        while True:
            batches = [batch(n, 1, b"tokn") for n in at]
            await store.runs.append(list(map(Append, claims, batches)))
            print(*(f"{claim.job.id}:{n}" for claim, n in zip(claims, at)), flush=True)
            at = [n + 1 for n in at]
    await asyncio.gather(go_on(claims[:1]), go_on(claims[1:2]), go_on(claims[2:]))

asyncio.run(main())
"""


def saving(path: Path, label: str, script: str = SAVING) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), label],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_killed_process_loses_no_announced_response(tmp_path: Path) -> None:
    path, dice = tmp_path / "a.db", random.Random(3)
    announced: list[str] = []
    for round_ in range(3):
        with saving(path, f"r{round_}") as child:
            assert child.stdout is not None
            count = dice.randint(20, 200)
            announced += [child.stdout.readline().strip() for _ in range(count)]
            child.send_signal(signal.SIGKILL)
            lines = child.stdout.read().splitlines(keepends=True)
            announced += [line.strip() for line in lines if line.endswith("\n")]
            child.wait(30)
    store = await SqliteStore.open(path)
    lost = [name for name in announced if await store.load("t", name) is None]
    await store.close()
    assert announced and not lost
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


async def test_killed_process_loses_no_event_and_its_runs_can_be_claimed(tmp_path: Path) -> None:
    path, dice = tmp_path / "a.db", random.Random(4)
    announced: dict[str, int] = {}
    for round_ in range(3):
        with saving(path, f"r{round_}", APPENDING) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(dice.randint(20, 200))]
            child.send_signal(signal.SIGKILL)
            lines += child.stdout.read().splitlines(keepends=True)
            child.wait(30)
        for line in lines:
            if line.endswith("\n"):
                announced |= {name: int(n) for name, n in map(_split, line.split())}
    store = await SqliteStore.open(path)
    taken = {
        claim.job.id: claim
        for claim in await store.runs.claim(
            ClaimQuery(owner="two", models=["m"], limit=99, lease_s=3_600)
        )
    }
    assert len(taken) == 12 and announced and announced.keys() <= taken.keys()
    for name, claim in taken.items():
        history = await store.runs.load_batches(claim)
        number = history[-1].last + 1
        assert [each.first for each in history] == [0, *range(2, number)], "a gap, or a double"
        assert all(each == batch(each.first, 1, b"tokn") for each in history[1:])
        assert number > announced.get(name, -1), "it was kept, and is gone"
        assert claim.epoch == {"r0": 4, "r1": 3, "r2": 2}[name.split("_")[1]]
        assert not await store.runs.append((Append(claim, batch(number)),))
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def _split(word: str) -> tuple[str, str]:
    name, _, number = word.partition(":")
    return name, number


async def test_owners_of_an_earlier_process_are_dead(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = await SqliteStore.open(path)
    claim = await begin_run(store)
    await begin_run(store, "b")
    assert await store.runs.take_over("t", "resp_b") is not None
    await store.close()
    store = await SqliteStore.open(path)
    taken = await store.runs.claim(ClaimQuery(owner="two", models=["m"], limit=9, lease_s=3_600))
    assert [(each.job.id, each.epoch) for each in taken] == [("resp_a", 2), ("resp_b", 3)]
    assert await store.runs.append((Append(claim, batch(2)),)) == {"resp_a"}
    await store.close()


async def test_cancelled_append_still_notifies(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    claim, removed = await begin_run(store), await begin_run(store, "b")
    await store.runs.lock_conversation(
        "t", "resp_a", ConversationLock("conv_a", "one"), lease_s=3_600
    )
    with store.runs.subscribe("t", "resp_a") as tail, store.runs.subscribe("t", "resp_b") as other:
        for work in (
            store.runs.append((Append(claim, batch(2)),)),
            store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(3))),
            store.delete("t", removed.job.id),
        ):
            task = asyncio.ensure_future(work)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await store.save("t", make_response("later"))  # what was begun before is there
        page = await store.runs.events("t", "resp_a", -1, limit=9)
        assert page is not None and page.ended
        assert [each and each.first for each in (tail.next_batch(1), tail.next_batch(2))] == [2, 3]
        assert tail.is_stale and other.is_stale
    assert (
        await store.runs.lock_conversation(
            "t", "resp_c", ConversationLock("conv_a", "one"), lease_s=3_600
        )
        is True
    )
    await store.close()


async def test_append_does_not_rewrite_the_request(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    request = replace(job("a"), prompt=b"tokn" * 250_000)
    await store.runs.create(NewRun(job=request, stored=queued_response("a"), batch=batch(0)))
    (claim,) = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=1, lease_s=60))
    assert claim.job == request
    for n in range(1, 100):
        await store.runs.append((Append(claim, batch(n)),))
    assert sum((tmp_path / f"a.db{end}").stat().st_size for end in ("", "-wal")) < 5_000_000
    await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(100)))
    await store.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


async def store_with_database(folder: Path) -> tuple[SqliteStore, Database]:
    database = await Database.open(folder / "a.db")
    return SqliteStore(database), database


async def test_reading_a_page_reads_only_its_rows(tmp_path: Path) -> None:
    store, database = await store_with_database(tmp_path)
    claim = await begin_run(store)
    await store.runs.append([Append(claim, batch(n)) for n in range(2, 5_000)])
    steps: list[None] = []
    await database.read(
        lambda connection: connection.set_progress_handler(lambda: steps.append(None), 100)
    )
    page = await store.runs.events("t", "resp_a", 3_000, limit=10)
    await database.read(lambda connection: connection.set_progress_handler(None, 0))
    assert page is not None and [each.first for each in page.batches] == list(range(3_001, 3_011))
    assert len(steps) < 10, "a thousand instructions for ten rows"
    await store.close()


async def test_reserving_a_response_does_not_count_those_that_are_stored(tmp_path: Path) -> None:
    store, database = await store_with_database(tmp_path)
    for number in range(500):
        await store.save("t", make_response(str(number)))
    reservation = Reservation(
        tenant="t",
        response_id="resp_new",
        owner="one",
        max_responses=1_000,
        max_bytes=10**9,
        lease_s=60,
    )
    steps: list[None] = []
    await database.write(
        lambda connection: connection.set_progress_handler(lambda: steps.append(None), 100)
    )
    assert await store.reserve_response(reservation)
    await database.write(lambda connection: connection.set_progress_handler(None, 0))
    assert len(steps) < 10, "a thousand instructions for any number of responses"
    await store.close()


async def test_log_is_deleted_with_its_run(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    claims = [await begin_run(store, name) for name in "abc"]
    await store.runs.append([Append(claim, batch(2)) for claim in claims])
    await store.delete("t", "resp_a")
    for claim in claims[1:]:
        await store.runs.end(claim, RunEnd(stored=ended_response(claim.job.id[-1]), batch=batch(3)))
    await store.sweep(Retention(max_log_age_s=1), 1_000)
    await store.delete("t", "resp_b")
    await store.sweep(Retention(max_log_age_s=1), 1_002)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        for table in ("runs", "jobs", "batches"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


async def test_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with saving(path, "r") as child:
        assert child.stdout is not None and child.stdout.readline()
        with pytest.raises(SetupError, match="Another process uses the store") as refused:
            await SqliteStore.open(path)
        assert "\n" not in str(refused.value)
        child.kill()
        child.wait(30)
        child.stdout.read()
    await (await SqliteStore.open(path)).close()


async def test_concurrent_writes_share_a_commit(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    await asyncio.gather(*(store.save("t", make_response(str(n))) for n in range(300)))
    assert store.commits < 100
    before = store.commits
    for n in range(5):
        await store.save("t", make_response(f"alone{n}"))
    assert store.commits == before + 5
    await store.close()


async def test_failing_write_fails_alone(tmp_path: Path) -> None:
    store, database = await store_with_database(tmp_path)

    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO nowhere VALUES (1)")

    saves = [store.save("t", make_response(str(n))) for n in range(20)]
    results = await asyncio.gather(
        *saves[:10], database.write(broken), *saves[10:], return_exceptions=True
    )
    assert isinstance(results[10], RunError)
    assert [result for result in results if result is not True] == [results[10]]
    for n in range(20):
        assert await store.load("t", f"resp_{n}") is not None
    await store.close()


async def test_unstorable_value_fails_alone(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    saves = [store.save(tenant, make_response("a")) for tenant in ("t", "\ud800", "u")]
    async with asyncio.timeout(60):
        first, broken, last = await asyncio.gather(*saves, return_exceptions=True)
        assert (first, last) == (True, True) and isinstance(broken, RunError)
        assert await store.load("u", "resp_a") == make_response("a")
        await store.close()


async def test_full_disk_fails_only_new_writes(tmp_path: Path) -> None:
    store, database = await store_with_database(tmp_path)
    await store.save("t", make_response("before"))

    def fill(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 10}")

    await database.write(fill)
    small, large = make_response("small"), make_response("large", text="x" * 1_000_000)
    results = await asyncio.gather(
        store.save("t", large), store.save("t", small), return_exceptions=True
    )
    assert isinstance(results[0], RunError) and results[1] is True
    assert await store.load("t", "resp_large") is None
    assert await store.load("t", "resp_small") == small
    await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 1000000"))
    await store.save("t", large)
    assert await store.load("t", "resp_large") == large
    await store.close()


async def test_cancelled_save_is_atomic(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    tasks = [asyncio.create_task(store.save("t", make_response(str(n)))) for n in range(50)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.save("t", make_response("last"))
    for n in range(50):
        stored = await store.load("t", f"resp_{n}")
        assert stored is None or stored == make_response(str(n))
    await store.close()


async def test_turn_stores_only_its_own_items(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    for n in range(200):
        await store.save("t", make_response(f"{n:03}", f"{n - 1:03}" if n else None))
    chain = await store.load_chain("t", "resp_199")
    assert chain is not None and len(chain) == 200
    await store.close()
    assert os.stat(tmp_path / "a.db").st_size < 200 * 5_000
    connection = sqlite3.connect(tmp_path / "a.db")
    sizes = [size for (size,) in connection.execute("SELECT bytes FROM responses ORDER BY seq")]
    connection.close()
    assert len(set(sizes[1:])) == 1


async def test_sweep_leaves_as_many_as_the_bound(tmp_path: Path) -> None:
    store, dice = await SqliteStore.open(tmp_path / "a.db"), random.Random(5)
    for n in range(60):
        previous = str(dice.randrange(n)) if n and dice.random() < 0.6 else None
        await store.save(
            "t", make_response(str(n), previous, created_at=n, text="z" * dice.randrange(99))
        )
        if dice.random() < 0.3:
            await store.delete("t", f"resp_{dice.randrange(n + 1)}")
    for text in ("short", "longer than it was"):
        await store.save("t", make_response("again", created_at=99, text=text))
    await store.sweep(Retention(max_responses=20), 100)
    await store.close()
    connection = sqlite3.connect(tmp_path / "a.db")
    assert connection.execute("SELECT sum(live) FROM responses").fetchone() == (20,)
    dead = "SELECT count(*) FROM responses AS r WHERE live = 0 AND NOT EXISTS (SELECT 1 FROM"
    dead += " responses AS c WHERE c.tenant = r.tenant AND c.parent = r.id)"
    assert connection.execute(dead).fetchone() == (0,)
    connection.close()


async def test_database_file_is_private(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "deep" / "a.db")
    await store.save("t", make_response("a"))
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "deep").iterdir()}
    await store.close()
    assert modes == dict.fromkeys(
        ["a.db", "a.db-reserve", "a.db-shm", "a.db-wal", "a.db.lock"], 0o600
    )


async def test_reopening_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        await (await SqliteStore.open(tmp_path / "a.db")).close()
    connection = sqlite3.connect(tmp_path / "a.db")
    applied = [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY name")]
    connection.close()
    assert applied == [name for name, _ in migrations("antiphon.store.sqlite", for_sqlite)]


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO migrations VALUES ('9999_future')",
        "UPDATE migrations SET name = '0001_schema-1b0a5ba1'",  # a script that was changed since
    ],
)
async def test_database_of_another_version_is_refused(tmp_path: Path, change: str) -> None:
    await (await SqliteStore.open(tmp_path / "a.db")).close()
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute(change)
    connection.commit()
    connection.close()
    with pytest.raises(SetupError, match="another version"):
        await SqliteStore.open(tmp_path / "a.db")


async def test_invalid_database_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(SetupError, match="cannot be used"):
        await SqliteStore.open(tmp_path / "a.db")


async def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be opened"):
        await SqliteStore.open(tmp_path / "file" / "a.db")


async def test_long_chain_is_one_query(tmp_path: Path) -> None:
    store, database = await store_with_database(tmp_path)
    await asyncio.gather(
        *(store.save("t", make_response(str(n), str(n - 1) if n else None)) for n in range(500))
    )
    requests: list[str] = []
    await database.read(lambda connection: connection.set_trace_callback(requests.append))
    requests.clear()
    chain = await store.load_chain("t", "resp_499")
    assert chain is not None and len(requests) == 1
    assert [stored.response.id for stored in chain] == [f"resp_{n}" for n in range(500)]
    await store.close()


async def test_reopened_store_has_all_data(tmp_path: Path) -> None:
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        store = await SqliteStore.open(tmp_path / "a.db")
        await store.save("t", make_response(name, previous))
        if previous is not None:
            await store.delete("t", "resp_a")
        await store.close()
    store = await SqliteStore.open(tmp_path / "a.db")
    assert await store.load("t", "resp_a") is None
    chain = await store.load_chain("t", "resp_c")
    assert chain == (make_response("a"), make_response("b", "a"), make_response("c", "b"))
    await store.close()


async def test_unwritable_database_file_is_named_and_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.mkdir()
    with pytest.raises(SetupError, match="cannot be used"):
        await SqliteStore.open(path)
    path.rmdir()
    await (await SqliteStore.open(path)).close()


async def test_links_to_one_database_share_its_lock(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    (tmp_path / "b.db").symlink_to(tmp_path / "a.db")
    with pytest.raises(SetupError, match="Another process uses the store"):
        await SqliteStore.open(tmp_path / "b.db")
    await store.close()
    await (await SqliteStore.open(tmp_path / "b.db")).close()


async def test_file_system_without_locks_has_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(SetupError, match="cannot be opened: No locks available"):
        await SqliteStore.open(tmp_path / "a.db")


#: A migration that a later version of Antiphon might contain.
NEXT_STEP = (
    "0002_notes",
    "ALTER TABLE responses ADD COLUMN note TEXT; UPDATE responses SET note = 'old ' || id;",
)


def add_migration(monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Let the SQLite store have one more migration."""
    known = migrations("antiphon.store.sqlite", for_sqlite)
    added = (*known, (name, script))
    monkeypatch.setattr("antiphon.store.sqlite.database.migrations", lambda *_: added)


async def test_older_database_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    store = await SqliteStore.open(path)
    await store.save("t", make_response("a"))
    await store.close()
    with monkeypatch.context() as patch:
        add_migration(patch, *NEXT_STEP)
        for _ in range(2):
            store = await SqliteStore.open(path)
            assert await store.load("t", "resp_a") == make_response("a")
            await store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT note FROM responses").fetchall() == [("old resp_a",)]
    with pytest.raises(SetupError, match="another version"):
        await SqliteStore.open(path)


async def test_failed_migration_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    await (await SqliteStore.open(path)).close()
    with monkeypatch.context() as patch:
        add_migration(patch, NEXT_STEP[0], f"{NEXT_STEP[1]} UPDATE absent SET note = '';")
        with pytest.raises(SetupError, match="no such table: absent"):
            await SqliteStore.open(path)
    with closing(sqlite3.connect(path)) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(responses)")]
    assert "note" not in columns
    await (await SqliteStore.open(path)).close()


async def test_runs_keep_their_conversations_locked_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = await SqliteStore.open(path)
    for name in "ab":
        lock = ConversationLock(f"conv_{name}", "one")
        hold = store.runs.lock_conversation
        assert await hold(
            "t", f"resp_{name}", ConversationLock(lock.conversation, "one"), lease_s=60
        )
        assert await store.runs.create(
            NewRun(job=job(name), stored=queued_response(name), batch=batch(0), lock=lock)
        )
    await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=1, lease_s=60))
    await store.close()

    store = await SqliteStore.open(path)
    hold = store.runs.lock_conversation
    for name in "ab":
        assert (
            await hold("t", "resp_c", ConversationLock(f"conv_{name}", "two"), lease_s=60) is False
        )
        await store.runs.unlock_conversation("t", f"conv_{name}", f"resp_{name}")
        assert (
            await hold("t", "resp_c", ConversationLock(f"conv_{name}", "two"), lease_s=60) is False
        )
    assert await hold("u", "resp_c", ConversationLock("conv_a", "two"), lease_s=60) is True, (
        "another tenant"
    )
    await store.runs.release("one")
    claim, other = await store.runs.claim(
        ClaimQuery(owner="two", models=["m"], limit=2, lease_s=60)
    )
    assert await hold("t", "resp_a", ConversationLock("conv_a", "two"), lease_s=60) is True, (
        "it continues"
    )
    assert await store.runs.end(
        claim, RunEnd(stored=ended_response("a"), batch=batch(1), conversation="conv_a")
    )
    assert await hold("t", "resp_c", ConversationLock("conv_a", "two"), lease_s=60) is True
    assert await hold("t", "resp_c", ConversationLock("conv_b", "two"), lease_s=0) is False
    assert await store.delete("t", other.job.id)
    assert await hold("t", "resp_c", ConversationLock("conv_b", "two"), lease_s=60) is True
    await store.close()


async def test_unreadable_row_raises_run_error(tmp_path: Path) -> None:
    store, database = await store_with_database(tmp_path)
    await store.save("t", make_response("a"))
    await store.save("t", make_response("b"))
    await database.write(
        lambda db: db.execute("UPDATE responses SET body = '{' WHERE id = 'resp_a'")
    )
    with pytest.raises(RunError, match=r"^The store could not be read\.$"):
        await store.load("t", "resp_a")
    assert await store.load("t", "resp_b") == make_response("b")
    await store.close()


async def test_cancelled_close_still_closes(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    saving = asyncio.create_task(store.save("t", make_response("a")))
    closing_ = asyncio.create_task(store.close())
    for _ in range(2):
        await asyncio.sleep(0)
    closing_.cancel()
    assert isinstance((await asyncio.gather(closing_, return_exceptions=True))[0], BaseException)
    async with asyncio.timeout(60):
        await saving
        await store.close()
    store = await SqliteStore.open(tmp_path / "a.db")
    assert await store.load("t", "resp_a") == make_response("a")
    await store.close()


async def test_temporary_stores_are_independent_and_leave_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, other = await open_store("memory:"), await open_store("memory:")
    assert not list(tmp_path.iterdir()), "a killed process would leave this"
    for n in range(50):
        await one.save("t", make_response(str(n), text="word " * 50_000))  # several checkpoints
    assert (await one.usage("t")).responses == 50 and await one.load("t", "resp_0") is not None
    assert await other.load("t", "resp_0") is None
    await one.close()
    await other.close()
    assert not list(tmp_path.iterdir())


def test_every_deletion_may_use_the_reserve_of_a_full_disk() -> None:
    """Otherwise nobody could make space through the API."""
    refused = [
        f"{path.name}: {function.name}"
        for path in Path(sqlite_package.__file__).parent.glob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.AsyncFunctionDef)
        and re.match("delete|drop|remove|forget", function.name)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "write"
        and "frees_space" not in {keyword.arg for keyword in call.keywords}
    ]
    assert refused == []
