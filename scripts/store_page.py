"""The page ``docs/store-plugin.md``: the contracts of a store, for authors of stores."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from antiphon.store import (
    audit,
    containers,
    files,
    journal,
    keys,
    rates,
    records,
    runs,
    skills,
    usage,
    values,
    vectors,
)
from antiphon.store.base import Retention, Store
from antiphon.store.common.subscriptions import Subscription, Subscriptions

_HEAD = """\
# Write a store

Generated from `antiphon/store/` by `make docs`.

A store keeps everything that must survive a request: responses, conversations, background runs with
their events, files, vector stores, usage and keys. The built-in stores are SQLite and PostgreSQL. A
package can provide another one for a URL scheme of its own:

```toml title="pyproject.toml"
[project.entry-points."antiphon.stores"]
example = "example_store:open_store"
```

`open_store` is an async function. It gets the URL of the setting `store`, such as
`example://host/name`, and returns the open store. It raises `antiphon.errors.SetupError` if the
store cannot be opened.

```python
from antiphon.store.base import Store
from antiphon.store.containers import ContainerDirectory
from antiphon.store.keys import KeyStore
from antiphon.store.rates import RateStore
from antiphon.store.skills import SkillStore


class ExampleStore(Store):
    def __init__(self, database):
        self.runs = ExampleRuns(database)  # implements RunStore
        self.files = ExampleFiles(database)  # implements FileStore
        self.vectors = ExampleVectors(database)  # implements VectorIndex
        self.values = ExampleValues(database)  # implements ValueStore
        self.journal = ExampleJournal(database)  # implements Journal
        self.audit = ExampleAudit(database)  # implements AuditLog
        self.usage_log = ExampleUsage(database)  # implements UsageLog
        self.keys = KeyStore(self.values)
        self.rates = RateStore(self.values)
        self.containers = ContainerDirectory(self.values)
        self.skills = SkillStore(self.values)
```

You implement {count} methods, which the sections below list. All other methods have an
implementation that calls these methods. Override one of them if your database has a faster way.
`antiphon/testing/memory_store/` implements what is required with dictionaries. It is the
reference: if a question is open, do what it does. `antiphon/store/common/` has code that the
built-in stores share and that may change, such as the fair choice of the runs to claim
(`claims.py`) and the choice of the responses that a sweep deletes (`eviction.py`). If your
database speaks SQL, read `antiphon/store/sql/`: the built-in stores are classes of this package,
each over an `Executor` of its own (`executor.py`), and the conversion between values and rows is
there, too (`row_mapping.py`). `antiphon.wire` has the types of the API, such as `File`
and `ResponseSummary`; `antiphon.wire.response_list.summarize` makes the summary of a response.

`KeyStore`, `RateStore`, `ContainerDirectory` and `SkillStore` keep their data in `values`. The
second and the third measure time by the monotonic clock of the machine. If processes of several
machines share your store, override the methods of these two.

## Rules for all methods

- **Errors**: raise `antiphon.errors.StoreError` if the database does not answer or cannot be read.
  Unknown ids are not errors: return what the method promises for them.
- **Durability**: return after the data is durable. A method that stores several things stores all
  of them, or none.
- **Tenants**: the id of another tenant's object counts as unknown. Ids that clients send may
  contain any character, also U+0000.
- **Concurrency**: all methods are called on one event loop, also at the same time. They must not
  block it.
- **Cancellation**: a caller may be cancelled while it waits. A write that has begun then takes
  effect as a whole or not at all, and subscribers are notified of what took effect.
- **Persist, then announce**: `append`, `end` and `delete` publish batches, and mark subscriptions
  as stale, only after the commit (`notifications.subscriptions`).
- **Epochs**: `append` and `end` check the epoch of the claim in the transaction that writes. A
  former owner of a run can then not change it.
- **Locks**: `save` with a lock checks the lock in the transaction that writes. A run that has not
  ended keeps the lock of its conversation, also over a restart.
- **Usage**: `usage` counts what a tenant stores besides values.

## Test it

```python
from antiphon.testing.store_check import check_store


async def test_store():
    await check_store(open_new_store)
```

`check_store` runs the checks of all contracts, each on a new store. `open_new_store` is a function
without parameters. It returns an async context manager that opens a new, empty store and closes it
at the end. `antiphon.testing.store_check.all_checks` returns the checks by name, so that a test can
run them one by one. Each of them takes an open store.
"""

_CONTRACTS: tuple[tuple[str, type[Any]], ...] = (
    ("the store itself", Store),
    ("`runs`", runs.RunStore),
    ("`files`", files.FileStore),
    ("`vectors`", vectors.VectorIndex),
    ("`values`", values.ValueStore),
    ("`journal`", journal.Journal),
    ("`audit`", audit.AuditLog),
    ("`usage_log`", usage.UsageLog),
)
_PROVIDED: tuple[tuple[str, type[Any]], ...] = (
    ("`keys`", keys.KeyStore),
    ("`rates`", rates.RateStore),
    ("`containers`", containers.ContainerDirectory),
    ("`skills`", skills.SkillStore),
)
_HELPERS: tuple[type[Any], ...] = (
    runs.LocalNotifications,
    Subscriptions,
    Subscription,
    runs.RunListener,
    runs.RunLimitReached,
    files.BlobStorage,
)
_MODULES = (records, files, vectors, journal, audit, usage, rates, containers, keys, skills)


def store_page() -> str:
    """Render ``docs/store-plugin.md``."""
    count = sum(len(contract.__abstractmethods__) for _, contract in _CONTRACTS)
    lines = [_HEAD.format(count=count).rstrip(), ""]
    for place, contract in _CONTRACTS:
        text = f"The contract of {place}, in `{contract.__module__}`."
        lines += [f"## {contract.__name__}", "", text, ""]
        lines += _class(contract, only_abstract=True)
    lines += ["## Parts that you need not write", ""]
    for place, part in _PROVIDED:
        names = ", ".join(f"`{name}`" for name in _methods(part) if not name.startswith("_"))
        summary = _paragraphs(part)[0]
        lines += [f"- {place}, `{part.__name__}`: {_plain(summary)} Its methods: {names}.", ""]
    lines += ["## Notifications and errors", ""]
    for helper in _HELPERS:
        lines += [_heading(helper), "", *_class(helper, only_abstract=False)]
    lines += ["## Values", ""]
    for value in (Retention, *_values()):
        lines += [_heading(value), "", *_struct(value)]
    return "\n".join(lines).rstrip() + "\n"


def _values() -> Iterator[type[Struct]]:
    for module in _MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, Struct):
                yield value


def _class(contract: type[Any], *, only_abstract: bool) -> list[str]:
    """Return the description of a contract and its methods. ``only_abstract``: list the other
    methods by name only."""
    abstract = getattr(contract, "__abstractmethods__", frozenset())
    lines = [_plain(paragraph) + "\n" for paragraph in _paragraphs(contract)]
    inherited = []
    for name, signature in _methods(contract).items():
        if name.startswith("_"):
            continue
        if only_abstract and name not in abstract:
            inherited.append(f"`{name}`")
            continue
        lines += ["```python", signature, "```", ""]
        lines += [_plain(each) + "\n" for each in _paragraphs(getattr(contract, name))]
    if inherited:
        lines += [f"You inherit {', '.join(inherited)}.", ""]
    return lines


def _struct(value: type[Struct]) -> list[str]:
    source = textwrap.dedent(inspect.getsource(value))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    head = f"class {ast.unparse(tree).partition('class ')[2].partition(':')[0]}:"
    fields = [
        ast.get_source_segment(source, each) or ""
        for each in tree.body
        if isinstance(each, ast.AnnAssign)
    ]
    lines = [_plain(paragraph) + "\n" for paragraph in _paragraphs(value)]
    return [*lines, "```python", head, *(f"    {each}" for each in fields), "```", ""]


def _heading(part: type[Any]) -> str:
    return f"### {part.__name__} (`{part.__module__}`)"


def _methods(contract: type[Any]) -> dict[str, str]:
    """Return the signature of each method of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(contract))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for each in tree.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            prefix = "async def" if isinstance(each, ast.AsyncFunctionDef) else "def"
            result = "" if each.returns is None else f" -> {ast.unparse(each.returns)}"
            found[each.name] = f"{prefix} {each.name}({ast.unparse(each.args)}){result}"
    return found


def _paragraphs(documented: Any) -> list[str]:
    return (inspect.getdoc(documented) or "").split("\n\n")


def _plain(text: str) -> str:
    """Convert a paragraph of a docstring to Markdown."""
    return text.replace("``", "`")
