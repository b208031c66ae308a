"""Options as declarations: the fields of a frozen struct say type, bounds, default and help, and
flags, environment names, file keys, messages and documentation follow from them.

It knows how an option is declared and read, and not one option.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct, inspect

from antiphon.errors import SetupError

__all__ = [
    "Option",
    "declare",
    "from_table",
    "from_text",
    "from_value",
    "literal",
    "nearest",
    "options",
    "parts",
    "read_file",
    "variables",
]

S = TypeVar("S", bound=Struct)


class Option(Struct, frozen=True, kw_only=True):
    """One option. ``kind`` is its type in words, ``default`` its default as text for people;
    None: it must be given. ``flag`` is None where there is none."""

    name: str
    type: Any
    kind: str
    default: str | None
    help: str
    group: str
    flag: str | None
    secret: bool

    @property
    def is_switch(self) -> bool:
        """A flag without a value."""
        return self.kind == _SWITCH

    @property
    def env(self) -> str:
        """The environment variable."""
        return "ANTIPHON_" + self.name.upper()


def declare(
    help: str,
    *,
    group: str = "",
    flag: str | None = "",
    default: str | None = None,
    kind: str | None = None,
    secret: bool = False,
    **bounds: Any,
) -> Meta:
    """What stands beside a field's type. ``flag``: "" derives it from the name, None leaves the
    command line out. ``default``: said in place of one that depends on the machine. ``kind``: said
    in place of the type. ``secret``: the value is never shown. ``bounds``: ge, gt, le."""
    extra = {"group": group, "flag": flag, "default": default, "kind": kind, "secret": secret}
    return Meta(description=help, extra=extra, **bounds)


def options(cls: type[Struct]) -> dict[str, Option]:
    """Every option of ``cls`` by its name, in the order of declaration."""
    hints = get_type_hints(cls, include_extras=True)
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return {field.name: _option(field, hints[field.name]) for field in info.fields}


def _option(field: inspect.Field, hint: Any) -> Option:
    meta = next(mark for mark in hint.__metadata__ if isinstance(mark, Meta) and mark.extra)
    extra = meta.extra or {}
    flag = extra["flag"]
    return Option(
        name=field.name,
        type=hint,
        kind=extra["kind"] or _kind(field.type, hint),
        default=extra["default"] or _default(field),
        help=meta.description or "",
        group=extra["group"],
        flag="--" + field.name.replace("_", "-") if flag == "" else flag,
        secret=extra["secret"],
    )


def _default(field: inspect.Field) -> str | None:
    if field.default is not NODEFAULT:
        return literal(field.default)
    return literal(field.default_factory()) if field.default_factory is not NODEFAULT else None


# --- reading -------------------------------------------------------------------------------------


def from_table(cls: type[S], table: Any, where: str) -> S:
    """A table of a settings file as a ``cls``. ``where`` begins the message of every
    ``SetupError``: unknown keys, missing ones, and values of the wrong kind."""
    known = options(cls)
    if not isinstance(table, Mapping):
        raise SetupError(f"{where.rstrip('.')} must be a table, not {literal(table)}")
    for name in table:
        if name not in known:
            raise SetupError(f"{where}{name} is unknown{nearest(name, known)}")
    for name, option in known.items():
        if option.default is None and name not in table:
            raise SetupError(f"{where}{name} is missing: {option.help}")
    return cls(**{name: from_value(known[name], table[name], where) for name in table})


def from_value(option: Option, value: Any, where: str) -> Any:
    """A value of a settings file as the option's type."""
    return _converted(option, value, where + option.name, strict=True)


def from_text(option: Option, text: str, name: str) -> Any:
    """A flag's or an environment variable's text as the option's type; lists are written with
    commas. ``name`` is what the text was given to."""
    value: Any = text
    if isinstance(_bare(inspect.type_info(option.type)), inspect.VarTupleType):
        value = parts(text)
    return _converted(option, value, name, strict=False)


def _converted(option: Option, value: Any, name: str, *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, option.type, strict=strict, dec_hook=_path)
    except (msgspec.ValidationError, TypeError):
        shown = "what was given" if option.secret else literal(value)
        raise SetupError(f"{name} must be {option.kind}, not {shown}") from None


def _path(cls: type, value: Any) -> Any:
    if cls is not Path or not isinstance(value, str) or not value:
        raise TypeError
    return Path(value).expanduser()


def read_file(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ``SetupError``."""
    try:
        with path.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} is not valid TOML: {error}") from None


#: What Kubernetes gives every container of a namespace that has a service called "antiphon".
_KUBERNETES = re.compile(r"ANTIPHON(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT)|PORT_\d+_)")


def variables(
    environ: Mapping[str, str], known: Mapping[str, Option], *, besides: Iterable[str] = ()
) -> dict[str, str]:
    """Option name → text, of the variables that are ours but for ``besides``. Raises ``SetupError``
    for one that is no option's."""
    by_env = {option.env: name for name, option in known.items()}
    found: dict[str, str] = {}
    for variable, text in environ.items():
        if not variable.startswith("ANTIPHON_") or variable in besides:
            continue
        if _KUBERNETES.match(variable) or re.match(r"(tcp|udp)://", text):
            continue
        if variable not in by_env:
            raise SetupError(f"{variable} is unknown{nearest(variable, by_env)}")
        found[by_env[variable]] = text
    return found


def parts(text: str) -> list[str]:
    """A list as flags and variables write it."""
    return [part.strip() for part in text.split(",") if part.strip()]


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one that was probably meant."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


# --- words ---------------------------------------------------------------------------------------

_SWITCH = "true or false"


def literal(value: Any) -> str:
    """A value as a settings file writes it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(key)} = {literal(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(literal(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False, default=str)


def _bare(info: inspect.Type) -> inspect.Type:
    """Without metadata and without None."""
    if isinstance(info, inspect.Metadata):
        return _bare(info.type)
    if isinstance(info, inspect.UnionType):
        return next(_bare(arm) for arm in info.types if not isinstance(arm, inspect.NoneType))
    return info


def _kind(info: inspect.Type, hint: Any) -> str:
    bare = _bare(info)
    if isinstance(bare, inspect.LiteralType):  # which sorts them
        return " or ".join(json.dumps(value) for value in _values(hint))
    return _WORDS[type(bare)](bare)


def _values(hint: Any) -> tuple[Any, ...]:
    """Those of the literal within a hint, in the order they were written."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((found for arm in get_args(hint) if (found := _values(arm))), ())


def _bounds(noun: str) -> Callable[[Any], str]:
    def words(info: Any) -> str:
        if info.ge is not None and info.le is not None:
            return f"{noun} from {info.ge} to {info.le}"
        if info.ge is not None:
            return f"{noun}, {info.ge} or more"
        if info.gt is not None:
            return f"{noun} above {info.gt}"
        return noun

    return words


_WORDS: Mapping[type[inspect.Type], Callable[[Any], str]] = {
    inspect.BoolType: lambda info: _SWITCH,
    inspect.CustomType: lambda info: "a path",
    inspect.DictType: lambda info: "a table",
    inspect.FloatType: _bounds("a number"),
    inspect.IntType: _bounds("a whole number"),
    inspect.StrType: lambda info: "a text",
    inspect.VarTupleType: lambda info: "a list of texts",
}
