"""The commands ``antiphon tenant`` and ``antiphon audit``. They export or delete a tenant of a
running server, and list the entries of its audit log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlencode

from antiphon.config.load import LoadedSettings
from antiphon.errors import SetupError

from .client import Json, find_server

#: Maximum number of audit events that the server returns at a time.
_PAGE = 100


def export_tenant(loaded: LoadedSettings, name: str, output: Path | None) -> None:
    """Write the archive with all data of a tenant to a file, or to standard output if ``output`` is
    None. An incomplete file is removed. Raises ``SetupError``."""
    path = f"/antiphon/tenants/{quote(name, safe='')}/export"
    server = find_server(loaded)
    try:
        if output is None:
            server.copy(path, sys.stdout.buffer)
            return
        unfinished = output.with_name(f"{output.name}.part")
        try:
            with unfinished.open("wb") as file:
                server.copy(path, file)
            unfinished.replace(output)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise SetupError(str(error)) from None


def delete_tenant(loaded: LoadedSettings, name: str, *, confirm: Callable[[], str] | None) -> None:
    """Delete a tenant. ``confirm`` asks the operator to repeat the tenant's name and returns the
    answer; None skips the confirmation. Raises ``SetupError``."""
    if confirm is not None and confirm() != name:
        raise SetupError("antiphon tenant delete: the names differ; nothing was deleted")
    find_server(loaded).delete(f"/antiphon/tenants/{quote(name, safe='')}")


def list_audit_events(
    loaded: LoadedSettings, filters: Mapping[str, str], *, count: int
) -> list[str]:
    """Return the latest administrative actions, one line for each action, newest first.
    ``filters``: query parameters of ``GET /antiphon/audit``. Raises ``SetupError``."""
    server = find_server(loaded)
    lines: list[str] = []
    query: dict[str, object] = dict(filters)
    while len(lines) < count:
        query["limit"] = min(_PAGE, count - len(lines))
        page = server.get(f"/antiphon/audit?{urlencode(query)}")
        lines += map(_line, page["data"])
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    return lines


def _line(event: Json) -> str:
    time = datetime.fromtimestamp(event["effective_at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    actor = event["actor"]
    who = " ".join(filter(None, (actor["key"], actor["address"]))) or "a local command"
    return f"{time}  {event['type']}  {event['target'] or '-'}  by {who}"
