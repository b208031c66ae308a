"""Writes the pages of ``docs/`` that follow from the code (``make docs``). Tests compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from antiphon.options import Option, options
from antiphon.settings import Key, Model, Settings

__all__ = ["PAGES", "settings_page", "write"]

ROOT = Path(__file__).parents[1]

_SETTINGS_HEAD = """\
# Settings

Generated from `antiphon/settings.py` by `make docs`.

A setting comes from `antiphon.toml` in the working directory (or the file that `--config` or
`ANTIPHON_CONFIG` names), or from the environment, which wins over the file, or from a flag of the
command line, which wins over both. `port = 9000`, `ANTIPHON_PORT=9000` and `--port 9000` are the
same. Lists are written with commas in variables and flags. Anything unknown is refused, and
`antiphon settings` shows every value with where it came from.

```toml
port = 9000

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


def settings_page() -> str:
    """``docs/settings.md``."""
    found = list(options(Settings).values())
    groups = dict.fromkeys(option.group for option in found)
    sections = [_SETTINGS_HEAD]
    for group in groups:
        members = [option for option in found if option.group == group]
        sections.append(f"## {group}\n\n{_table(members, flags=True)}")
    for heading, cls in (("`[models.NAME]`", Model), ("`[[keys]]`", Key)):
        sections.append(f"## {heading}\n\n{_first(cls)}\n\n{_table(options(cls).values())}")
    return "\n".join(sections)


def _first(cls: type[Struct]) -> str:
    """The docstring, without the heading it begins with, as one paragraph."""
    text = " ".join((cls.__doc__ or "").split())
    rest = text.partition(": ")[2]
    return rest[0].upper() + rest[1:]


def _table(rows: Iterable[Option], *, flags: bool = False) -> str:
    lines = ["| setting | type | default | what it is |", "|---|---|---|---|"]
    for option in rows:
        names = f"`{option.name}`"
        if flags and option.flag != f"--{option.name.replace('_', '-')}":
            names += f"<br>flag `{option.flag}`" if option.flag else "<br>no flag"
        default = "required" if option.default is None else option.default
        cells = (names, option.kind, default, option.help)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


#: Page → what it should hold.
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/settings.md": settings_page,
}


def write() -> None:
    """Bring every page up to date."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
