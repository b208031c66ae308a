"""The commands for operators of a running server: ``usage``, ``tenant`` and ``audit``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from antiphon.config.load import LoadedSettings

from .base import Command, print_line

#: Maximum number of rows, or of days or hours, that a command shows.
_MAX_PERIODS = 10_000


def _tenant_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["export", "delete"],
        help="export: write all data of the tenant to an archive; delete: delete all data of the"
        " tenant",
    )
    parser.add_argument("name", metavar="NAME", help="name of the tenant")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file for the exported archive (default: standard output)",
    )
    parser.add_argument("--yes", action="store_true", help="delete without asking for confirmation")


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    for flag, name, help in (
        ("--type", "type", "actions of this type, such as api_key.created"),
        ("--by", "key", "actions with the API key of this name"),
        ("--target", "target", "actions on the object with this name or id"),
    ):
        parser.add_argument(flag, dest=f"audit_{name}", metavar="NAME", help=f"only {help}")
    parser.add_argument(
        "--last",
        type=_period_count,
        metavar="N",
        default=20,
        help="show the last N actions (default: 20)",
    )


def _usage_arguments(parser: argparse.ArgumentParser) -> None:
    from ..usage import GROUPS

    width = parser.add_mutually_exclusive_group()
    width.add_argument("--day", action="store_true", help="one row for each day (default)")
    width.add_argument("--hour", action="store_true", help="one row for each hour")
    parser.add_argument(
        "--by",
        action="append",
        choices=list(GROUPS),
        help="separate rows for each key, model or tenant; may be repeated",
    )
    parser.add_argument(
        "--last",
        type=_period_count,
        metavar="N",
        help="number of days or hours, with the current one (default: 7 days or 24 hours)",
    )
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")


def _period_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_PERIODS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MAX_PERIODS}")
    return int(text)


def _usage(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from ..usage import run

    run(
        loaded,
        by_hour=arguments.hour,
        periods=arguments.last or (24 if arguments.hour else 7),
        groups=tuple(dict.fromkeys(arguments.by or ())),
        as_csv=arguments.csv,
        now=int(time.time()),  # noqa: TID251 - the clock of the command
    )


def _tenant(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from .. import tenants

    if arguments.action == "export":
        return tenants.export_tenant(loaded, arguments.name, arguments.output)

    def confirm() -> str:
        sys.stderr.write(f"This deletes all data of the tenant {arguments.name}. Repeat its name: ")
        sys.stderr.flush()
        return sys.stdin.readline().strip()

    tenants.delete_tenant(loaded, arguments.name, confirm=None if arguments.yes else confirm)
    print_line(f"{arguments.name}  deleted")


def _audit(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    from .. import tenants

    filters = {name: getattr(arguments, f"audit_{name}") for name in ("type", "key", "target")}
    given = {name: value for name, value in filters.items() if value is not None}
    for line in tenants.list_audit_events(loaded, given, count=arguments.last):
        print_line(line)


USAGE = Command(
    help="Show the usage of a running server: requests, tokens and tool calls.",
    run=_usage,
    flags=("port", "chat.url", "chat.key"),
    arguments=_usage_arguments,
)

TENANT = Command(
    help="Export or delete everything that a running server stores for a tenant.",
    run=_tenant,
    flags=("port", "chat.url", "chat.key"),
    takes="export|delete NAME ",
    arguments=_tenant_arguments,
)

AUDIT = Command(
    help="Show the audit log of a running server: who administered it, when and how.",
    run=_audit,
    flags=("port", "chat.url", "chat.key"),
    arguments=_audit_arguments,
)
