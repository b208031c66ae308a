"""The command ``key``."""

from __future__ import annotations

import argparse
import hashlib
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from antiphon.config.keys import ApiKey
from antiphon.config.load import LoadedSettings
from antiphon.config.options import flag_name, from_text, literal, options
from antiphon.errors import SetupError

from .base import Command, print_line


def _key_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["new", "list", "rotate", "revoke"],
        help="new: create a key; list: show all keys; rotate: replace the secret of a key; revoke:"
        " delete a key; all but new need --store",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the key")
    parser.add_argument(
        "--tenant", default="default", help="tenant of the new key (default: default)"
    )
    parser.add_argument(
        "--store",
        dest="in_store",
        nargs="?",
        const="",
        metavar="URL",
        help="manage the keys in the store (default: the store of the settings); without it, new"
        " prints a key for the settings file",
    )
    for limit in (*_KEY_LIMITS, *_KEY_LISTS):
        is_list = limit in _KEY_LISTS
        parser.add_argument(
            flag_name(limit),
            dest=f"key_{limit}",  # a setting has the same name
            metavar="A,B,…" if is_list else "N",
            help=options(ApiKey)[limit].help,
        )


_KEY_LIMITS = (
    "requests_per_minute",
    "tokens_per_minute",
    "tokens_per_day",
    "concurrent_requests",
    "background_runs",
)


_KEY_LISTS = ("models", "tools")


def _key(loaded: LoadedSettings, arguments: argparse.Namespace) -> None:
    limits: dict[str, Any] = {}
    for name in (*_KEY_LIMITS, *_KEY_LISTS):
        if (text := getattr(arguments, f"key_{name}")) is not None:
            limits[name] = from_text(options(ApiKey)[name], text, flag_name(name))
    if arguments.in_store is not None:
        return _stored_key(_with_store(loaded, arguments), arguments, limits)
    if arguments.action != "new":
        raise SetupError("antiphon key: only keys in the store can be managed: add --store")
    secret = f"sk-{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    fields = {"name": arguments.name} if arguments.name else {}
    fields |= {"tenant": arguments.tenant, "sha256": digest, **limits}
    print_line(f"{secret}\n")
    sys.stderr.write("The key is shown only once. Add this to antiphon.toml:\n")
    lines = [f"{name} = {literal(value)}" for name, value in fields.items()]
    print_line("\n".join(["[[keys]]", *lines]))


def _with_store(loaded: LoadedSettings, arguments: argparse.Namespace) -> LoadedSettings:
    """Return the settings with the store that ``--store`` names, if it names one."""
    from ..keys import STORE_FLAG

    store = arguments.in_store
    if not store:
        return loaded
    settings = replace(loaded.settings, store=store)
    return replace(loaded, settings=settings, origins={**loaded.origins, "store": STORE_FLAG})


def _stored_key(
    loaded: LoadedSettings, arguments: argparse.Namespace, limits: Mapping[str, object]
) -> None:
    from .. import keys

    name = arguments.name

    if arguments.action == "list":
        names = (*_KEY_LIMITS, *_KEY_LISTS)
        for key in keys.list_keys(loaded):
            shown = (f"{name} = {_shown(key[name])}" for name in names if key[name] is not None)
            parts = (key["name"], key["tenant"], key["redacted_value"], *shown)
            print_line("  ".join(parts))
        return
    if name is None:
        raise SetupError(
            f"antiphon key {arguments.action}: give the name of the key before --store"
        )
    if arguments.action == "revoke":
        keys.revoke_key(loaded, name)
        return print_line(f"{name}  revoked")
    if arguments.action == "rotate":
        secret = keys.rotate_key(loaded, name)
    else:
        secret = keys.new_key(loaded, {"name": name, "tenant": arguments.tenant, **limits})
    print_line(secret)
    sys.stderr.write("The key is shown only once.\n")
    if not loaded.settings.stored_keys:
        sys.stderr.write("Servers accept it if they have the setting stored_keys = true.\n")


def _shown(limit: object) -> str:
    return ", ".join(limit) if isinstance(limit, list | tuple) else str(limit)


KEY = Command(
    help="Create an API key; list, rotate and revoke the API keys in the store.",
    run=_key,
    flags=("port", "chat.url", "chat.key"),
    takes="new|list|rotate|revoke [NAME] ",
    arguments=_key_arguments,
)
