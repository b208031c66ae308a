"""Write one page for each client of ``docs/clients/``, from what its tests send.

``tests/clients/seen.json`` lists what the requests of each client contained in ``make clients``.
What becomes of a field is read from the table of the parser.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.compat.messages.request import MESSAGE_FIELDS
from antiphon.wire.request import FIELDS

_ROOT = Path(__file__).parents[1]
_OBSERVED = _ROOT / "tests" / "clients" / "seen.json"

#: Fate of a field in ``FIELDS`` → what the page says.
_FATES: Mapping[str, str] = {
    "honoured": "supported",
    "echoed": "accepted, and returned in the response if OpenAI's API returns it too",
    "hint": "accepted, but may have no effect",
    "refused": "rejected, unless the value has no effect",
}
#: API → its module, and the table of its fields.
_APIS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "responses": ("antiphon/wire/request.py", FIELDS),
    "messages": ("antiphon/compat/messages/request.py", MESSAGE_FIELDS),
}


def client_pages() -> dict[str, Callable[[], str]]:
    """Return a dict from the path of each client's page to the function that renders the page."""
    seen: Mapping[str, Any] = json.loads(_OBSERVED.read_text(encoding="utf-8"))
    return {f"docs/clients/{name}.md": _renderer(client) for name, client in seen.items()}


def _renderer(client: Mapping[str, Any]) -> Callable[[], str]:
    return lambda: _page(client)


def _page(client: Mapping[str, Any]) -> str:
    fields: Sequence[str] = client["fields"]
    source, treatments = _APIS[client.get("api", "responses")]
    parts = [
        f"# {client['title']} {client['version']}",
        f"`make docs` generates this page from `tests/clients/seen.json` and `{source}`."
        f" [clients.md](../clients.md#{client['section'].replace(' ', '-')}) describes how to"
        " connect this client to Antiphon.",
        "## What was tried",
        _checks([(each, "") for each in client["tried"]]),
        "`make clients` tests everything in this list. The next sections list what the client sent"
        " in these tests.",
        "## Fields of its requests",
        _checks([(f"`{name}`", _fate(name, treatments)) for name in fields]),
    ]
    for heading, key in (
        ("Tools that it offers", "tools"),
        ("Items that it sends", "items"),
        ("`include`", "include"),
        ("Other endpoints that it calls", "paths"),
    ):
        if client[key]:
            parts += [f"## {heading}", _checks([(_quoted(each), "") for each in client[key]])]
    parts.append("## What does not work")
    parts.append(
        "\n".join(f"- [ ] {each}" for each in client["fails"]) or "Everything that was tried works."
    )
    return "\n\n".join(parts) + "\n"


def _quoted(name: str) -> str:
    """Return the first word of ``name`` as code. The other words describe it."""
    word, space, rest = name.partition(" ")
    return f"`{word}`{space}{rest}"


def _fate(name: str, treatments: Mapping[str, str]) -> str:
    if name not in treatments:
        return "not known to this server, and ignored"
    return _FATES[treatments[name]]


def _checks(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- [x] {name}" + (f": {text}" if text else "") for name, text in rows)
