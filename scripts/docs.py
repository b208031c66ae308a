"""Write the files that are generated from the code: pages of ``docs/``, and a module of the web
page (``make docs``).

A test fails if a file is out of date."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from antiphon.config.keys import ApiKey
from antiphon.config.mcp import McpServer
from antiphon.config.model import Model
from antiphon.config.oidc import OidcGrant, OidcIssuer
from antiphon.config.options import Option, flag_name, options, setting_tables
from antiphon.config.reload import RELOADED_SETTINGS
from antiphon.config.settings import Settings
from antiphon.config.tenants import Tenant
from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.formats.types import ReasoningFormat, ToolFormat
from antiphon.stream.event_grammar import ANYWHERE, ITEM, PLAIN_ITEM, RESPONSE, SOURCES, Machine
from scripts.client_pages import client_pages
from scripts.not_offered_page import not_offered_page
from scripts.page_kinds import kinds_module
from scripts.public_api_page import public_api_page
from scripts.reference import api_page, errors_page, metrics_page
from scripts.store_page import store_page
from tests.conformance import manifest

ROOT = Path(__file__).parents[1]

_SETTINGS_HEAD = """\
# Settings

Generated from `antiphon/config/settings.py` by `make docs`.

Settings come from `antiphon.toml` in the working directory (or the file that `--config` or
`ANTIPHON_CONFIG` names), from environment variables, which override the file, and from command line
flags, which override both. `port = 9000`, `ANTIPHON_PORT=9000` and `--port 9000` mean the same.

Settings that belong together are in a table, such as `[web_search]`. Its flags and variables begin
with the name of the table: `url` in `[web_search]` is `ANTIPHON_WEB_SEARCH_URL` or
`--web-search-url`. Pages and messages write `web_search.url`, which is also valid in the file. One
setting of some tables has the flag and the variable of the table itself: `--sandbox off` sets
`sandbox.kind`.

In variables and flags, the elements of a list are separated by commas. Tables of tables, such as
`[tenants.NAME]`, can be set only in the file, except `models` and `keys`. In every setting, a text
`$NAME` is replaced by the environment variable `NAME`, also as an element of a list or of a table.
What the variable contains is not replaced again.
If a setting is unknown, or such a variable is not set or empty, the server does not start.
`antiphon settings` prints every value and its origin.

```toml
port = 9000

[web_search]
engine = "ddgs"

[models.qwen]
source = "Qwen/Qwen3-4B-GGUF:Q4_K_M"
aliases = ["gpt-5.5"]
context_size = 16384
temperature = 0.7

[[keys]]
tenant = "team-a"
sha256 = "…"  # antiphon key new --tenant team-a
```
"""


_RELOAD_HEAD = """\
## Settings that a reload applies

A running server applies these settings [without a
restart](operations.md#change-settings-without-a-restart). All others need a restart.

"""

_TABLES: tuple[tuple[str, type[Struct]], ...] = (
    ("`[models.NAME]`", Model),
    ("`[mcp.servers.NAME]`", McpServer),
    ("`[[keys]]`", ApiKey),
    ("`[oidc.NAME]`", OidcIssuer),
    ("`[[oidc.NAME.grants]]`", OidcGrant),
    ("`[tenants.NAME]`", Tenant),
)


def settings_page() -> str:
    """Render ``docs/settings.md``."""
    found = list(options(Settings).values())
    flat = [option for option in found if option.table is None]
    sections = [_SETTINGS_HEAD]
    for group in dict.fromkeys(option.group for option in flat):
        members = [option for option in flat if option.group == group]
        sections.append(f"## {group}\n\n{_table(members, flags=True)}")
    for name, cls in setting_tables(Settings).items():
        members = [option for option in found if option.table == name]
        about = " ".join((cls.__doc__ or "").split()).replace("``", "`")
        sections.append(f"## `[{name}]`\n\n{about}\n\n{_table(members, flags=True)}")
    reloaded = ", ".join(f"`{name}`" for name in sorted(RELOADED_SETTINGS))
    sections.append(f"{_RELOAD_HEAD}{textwrap.fill(reloaded + '.', 100)}\n")
    for heading, cls in _TABLES:
        sections.append(f"## {heading}\n\n{_description(cls)}\n\n{_table(options(cls).values())}")
    return "\n".join(sections)


def _description(cls: type[Struct]) -> str:
    """Return the class's docstring without its first paragraph, as one paragraph of Markdown."""
    _, _, rest = (cls.__doc__ or "").partition("\n\n")
    return " ".join(rest.split()).replace("``", "`")


def _table(rows: Iterable[Option], *, flags: bool = False) -> str:
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for option in rows:
        names = f"`{option.name.rpartition('.')[2]}`"
        if flags and option.flag != flag_name(option.name):
            names += f"<br>flag `{option.flag}`" if option.flag else "<br>no flag"
        default = "required" if option.default is None else option.default
        cells = (names, option.kind, default, option.help)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


_EVENTS_HEAD = """\
# Events

This page defines the legal order of events. It is generated from
`antiphon/stream/event_grammar.py` by `make docs`. Antiphon's tests check every stream against it.

One state machine covers the response. In addition, each item has a state machine, from
`output_item.added` to `output_item.done`. The item's type determines which one. The tables show
event names without their prefix `response.`. The name of a part's event ends with the type of the
part, such as `content_part.added/refusal`. The tests also check the numbering: `sequence_number`
has no gaps, items and parts have consecutive indices, and ids never change.
"""


_EVENTS_ENDS = """\
## A model that generates nothing

A completed response always has an answer or a call, because clients fail on an empty `output`. If
the model generates nothing, or only reasoning, the output ends with a message that has one part
with an empty text. If a limit ends a response before the first text, its status is `incomplete`,
and its output may be empty. If the request has `generate: false`, the output is always empty.

## How a stream ends

At the end of a complete stream, the last event is `completed`, `incomplete` or `failed`, and
`data: [DONE]` follows. A stream can also end in three other ways:

- **cancelled**: the background response was cancelled. Its open items are closed as `incomplete`,
  there is no terminal event, and `data: [DONE]` follows. Retrieve the response: its status is
  `cancelled`.
- **deleted**: the background response was deleted. Its open items are not closed, there is no
  terminal event, and `data: [DONE]` follows. Retrieving the response returns 404.
- **truncated**: the connection broke, and there is no `data: [DONE]`. A background response
  continues without its readers. Resume its stream with `starting_after`.

OpenAI has no terminal event for `cancelled` either: the stream of a cancelled response just ends.
Antiphon adds no such event, because strict clients reject event types that OpenAI does not send.
The official SDKs hide `[DONE]`. If the loop over the events of an SDK ends without a terminal
event, the response was cancelled or deleted. If the stream is truncated, the SDK raises an
exception.
"""


def events_page() -> str:
    """Render ``docs/events.md``."""
    sources = "\n".join(f"- **{key}**: {what}" for key, what in SOURCES.items())
    anywhere = ", ".join(f"`{name}` ({source})" for name, source in ANYWHERE.items())
    sections = [
        _EVENTS_HEAD,
        f"Sources of the rules:\n\n{sources}\n",
        f"Allowed at any time after `created`, without a change of state: {anywhere}.\n",
        _machine("The response", RESPONSE, "start", "ended", ""),
    ]
    for kind, machine in ITEM.items():
        sections.append(_machine(f"`{kind}`", machine, "open", "closed", "output_item.added"))
    sections.append(_machine("Every other item", PLAIN_ITEM, "open", "closed", "output_item.added"))
    sections.append(_EVENTS_ENDS)
    return "\n".join(sections)


def _machine(title: str, machine: Machine, first: str, last: str, opening: str) -> str:
    """Render a state machine as a table and as a diagram."""
    table = ["| state | event | next state | source |", "|---|---|---|---|"]
    drawn = ["```mermaid", "stateDiagram-v2"]
    states = dict.fromkeys((first, *(edge.to for edge in machine.values())))
    drawn += [f'    state "{state}" as {_name(state)}' for state in states]
    drawn.append(f"    [*] --> {_name(first)}" + (f": {opening}" if opening else ""))
    for (state, event), edge in machine.items():
        table.append(f"| {state} | `{event}` | {edge.to} | {edge.source} |")
        drawn.append(f"    {_name(state)} --> {_name(edge.to)}: {event}")
    drawn += [f"    {_name(last)} --> [*]", "```"]
    return "\n".join([f"## {title}", "", *table, "", *drawn, ""])


def _name(state: str) -> str:
    return state.replace(" ", "_")


_MODELS_MARK = "<!-- what follows is generated by `make docs` -->\n"


def models_page() -> str:
    """Render ``docs/models.md``: the hand-written part, then the tables of formats."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    sections = [page.partition(_MODELS_MARK)[0] + _MODELS_MARK]
    sections.append(
        "\nIf the last column says *published*, a test compares the row with a chat template: the"
        "\none that is published with the model, or one that was written for vLLM. The other rows"
        "\nfollow the source that the column *source* names, for example a parser of vLLM. The"
        "\nnames in brackets are names that other servers use."
        "\nAntiphon accepts these names too.\n"
    )
    sections.append(
        "\n### Tool calls\n\n| format | models | example | source | |\n|---|---|---|---|---|"
    )
    for name, form in TOOLS.items():
        sections.append(_format_row(name, form, _example_call(form)))
    sections.append(
        "\n### Reasoning\n\n| format | models | syntax | source | |\n|---|---|---|---|---|"
    )
    for name, thinks in REASONING.items():
        looks = f"{thinks.open[0]}…{thinks.close[0]}" if thinks.open else ""
        sections.append(_format_row(name, thinks, looks))
    sections.append(
        "| `identity` | models that do not reason: all text is the answer."
        ' The name `""` means the same as `identity` | | | |\n'
    )
    return "\n".join(sections)


def _format_row(name: str, row: ToolFormat | ReasoningFormat, looks: str) -> str:
    also = f" ({', '.join(row.aliases)})" if row.aliases else ""
    shown = looks.replace("\n", "⏎").replace("|", "&#124;").replace("<", "&lt;")
    checked = "published" if "template" in row.source else ""
    return f"| `{name}`{also} | {row.models} | <code>{shown}</code> | {row.source} | {checked} |"


def _example_call(form: ToolFormat) -> str:
    """Return a call with one argument in this format."""
    how = form.written
    return how.render_calls([("weather", how.render_arguments({"city": "Oslo"}))])


#: Page → the function that renders it.
PAGES: Mapping[str, Callable[[], str]] = {
    "antiphon/http/ui/static/js/kinds.js": kinds_module,
    "docs/api.md": api_page,
    "docs/conformance.md": manifest.page,
    "docs/errors.md": errors_page,
    "docs/events.md": events_page,
    "docs/metrics.md": metrics_page,
    "docs/models.md": models_page,
    "docs/not-offered.md": not_offered_page,
    "docs/public-api.md": public_api_page,
    "docs/settings.md": settings_page,
    "docs/store-plugin.md": store_page,
    **client_pages(),
}


def write() -> None:
    """Write every generated page."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
