"""Options that are declared as fields of a frozen struct.

The annotation of a field declares its type, bounds and help text. Flags, environment variables,
keys in settings files, error messages and documentation are derived from these annotations.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from inspect import get_annotations
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct, inspect

from antiphon.errors import SetupError

S = TypeVar("S", bound=Struct)


class Option(Struct, frozen=True, kw_only=True):
    """The description of one option, read from the field that declares it.

    - ``kind``: the type of the option in words, such as ``a path``.
    - ``default``: the default value as text; None if the option is required.
    - ``name``: the name of the option. An option in a table of settings has the name TABLE.KEY.
    - ``group``: heading under which help lists the option.
    - ``flag``: the command-line flag; None if the option has no flag.
    - ``env``: the environment variable.
    - ``is_main``: whether the option has the flag and the variable of its table.
    """

    name: str
    type: Any
    kind: str
    default: str | None
    help: str
    group: str
    flag: str | None
    env: str
    secret: bool
    is_main: bool

    @property
    def is_switch(self) -> bool:
        """Whether the option's flag takes no value on the command line. Such a flag alone means
        true."""
        return self.kind in (_SWITCH, AUTO_SWITCH)

    @property
    def table(self) -> str | None:
        """Name of the table of settings that contains the option."""
        return self.name.partition(".")[0] if "." in self.name else None


def declare(
    help: str,
    *,
    group: str = "",
    flag: str | None = "",
    default: str | None = None,
    kind: str | None = None,
    secret: bool = False,
    main: bool = False,
    **bounds: Any,
) -> Meta:
    """Declare an option. Use the result as metadata in the annotation of the field. A ``Meta`` with
    only a description declares an option without a flag.

    - ``help``: the help text.
    - ``group``: the heading under which help and documentation list the option.
    - ``flag``: the command-line flag. "" means a flag with the name of the option. None means no
      flag.
    - ``default``: text that help shows in place of the default value, if this value depends on the
      machine.
    - ``kind``: text that help shows in place of the type of the field.
    - ``secret``: True if the value must never be printed.
    - ``main``: True if the option has the flag and the environment variable of its table. For
      example, ``--sandbox`` sets ``sandbox.kind``.
    - ``bounds``: the arguments ``ge``, ``gt`` and ``le`` of ``Meta``, which limit the value.
    """
    extra = {
        "group": group,
        "flag": flag,
        "default": default,
        "kind": kind,
        "secret": secret,
        "main": main,
    }
    return Meta(description=help, extra=extra, **bounds)


#: The properties of an option that is declared outside of this package, by its description alone.
_UNDECLARED = declare("").extra or {}


@cache
def options(cls: type[Struct]) -> Mapping[str, Option]:
    """Return all options of the struct ``cls`` by name, in the order of declaration, and those of a
    base class last. The options of a table, i.e. of a field whose type is a struct, have names such
    as ``web_search.url``."""
    return {option.name: option for option in _struct_options(cls)}


def _struct_options(cls: type[Struct], table: str = "") -> Iterator[Option]:
    hints = get_type_hints(cls, include_extras=True)
    tables = setting_tables(cls)
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    own = get_annotations(cls)
    for field in sorted(info.fields, key=lambda field: field.name not in own):
        if field.name in tables:
            yield from _struct_options(tables[field.name], field.name)
        else:
            yield _option(field, hints[field.name], table)


@cache
def setting_tables(cls: type[Struct]) -> Mapping[str, type[Struct]]:
    """Return the tables of settings of the struct ``cls``: name of the field → its struct."""
    hints = get_type_hints(cls, include_extras=True)
    return {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, Struct)
    }


def setting_value(settings: Struct, name: str) -> object:
    """Return the value of the option ``name``, such as ``port`` or ``web_search.url``."""
    return attrgetter(name)(settings)


def from_options(cls: type[S], values: Mapping[str, object]) -> S:
    """Make an instance of ``cls``. ``values``: the values by the names of the options, such as
    ``web_search.url``. Options without a value have their default."""
    fields: dict[str, object] = {}
    tables: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        table, dot, key = name.partition(".")
        if dot:
            tables.setdefault(table, {})[key] = value
        else:
            fields[name] = value
    structs = setting_tables(cls)
    return cls(**fields, **{name: structs[name](**inner) for name, inner in tables.items()})


def _option(field: inspect.Field, hint: Any, table: str) -> Option:
    meta = next(mark for mark in hint.__metadata__ if isinstance(mark, Meta) and mark.description)
    extra = meta.extra or _UNDECLARED
    flag = extra["flag"]
    name = f"{table}.{field.name}" if table else field.name
    shown = table if extra["main"] else name
    return Option(
        name=name,
        type=hint,
        kind=extra["kind"] or _kind(field.type, hint),
        default=extra["default"] or _default(field),
        help=meta.description or "",
        group=extra["group"],
        flag=flag_name(shown) if flag == "" else flag,
        env=variable_name(shown),
        secret=extra["secret"],
        is_main=extra["main"],
    )


def _default(field: inspect.Field) -> str | None:
    if field.default is not NODEFAULT:
        return literal(field.default)
    return literal(field.default_factory()) if field.default_factory is not NODEFAULT else None


# --- reading -------------------------------------------------------------------------------------


def from_table(cls: type[S], table: object, prefix: str) -> S:
    """Convert a table of a settings file to an instance of ``cls``.

    ``prefix``: in error messages, this text precedes the name of a key. Raises ``SetupError`` for
    unknown keys, missing keys and values of the wrong type.
    """
    known = options(cls)
    if not isinstance(table, Mapping):
        raise SetupError(f"{prefix.rstrip('.')} must be a table, not {literal(table)}")
    for name in table:
        if name not in known:
            meant = did_you_mean(name, known) or _quoted_name(prefix, name, table[name])
            raise SetupError(f"{prefix}{name} is unknown{meant}")
    for name, option in known.items():
        if option.default is None and name not in table:
            raise SetupError(f"{prefix}{name} is missing: {option.help}")
    return cls(**{name: from_value(known[name], table[name], prefix) for name in table})


def _quoted_name(prefix: str, name: str, value: object) -> str:
    """Return a hint for a table such as ``[models.Qwen3-1.7B]``. TOML reads the dot in the name as
    the start of a table inside ``models.Qwen3-1``."""
    *tables, first = prefix.rpartition(" ")[2].strip(".").split(".")
    if not isinstance(value, Mapping) or not tables:
        return ""
    return f'; a name with a dot needs quotes: [{".".join(tables)}."{first}.{name}"]'


def from_value(option: Option, value: object, where: str) -> object:
    """Convert a value of a settings file to the option's type. ``where``: in error messages, this
    text precedes the option's name. Raises ``SetupError``."""
    bare = _bare(inspect.type_info(option.type))
    item = bare.item_type if isinstance(bare, inspect.VarTupleType) else bare
    if isinstance(item, inspect.StructType) and isinstance(value, list):
        return tuple(
            from_table(item.cls, table, f"{where}{option.name}[{number}].")
            for number, table in enumerate(value)
        )
    return _convert(option, value, where + option.name, strict=True)


def from_text(option: Option, text: str, name: str) -> object:
    """Convert the text of a flag or an environment variable to the option's type.

    The entries of a list are separated by commas. ``name``: the flag or variable, for error
    messages. Raises ``SetupError``.
    """
    value: object = text
    if isinstance(_bare(inspect.type_info(option.type)), inspect.VarTupleType):
        value = split_list(text)
    return _convert(option, value, name, strict=False)


def _convert(option: Option, value: object, name: str, *, strict: bool) -> object:
    try:
        return msgspec.convert(value, option.type, strict=strict, dec_hook=_path)
    except (msgspec.ValidationError, TypeError):
        shown = "the given value" if option.secret else literal(value)
        raise SetupError(f"{name} must be {option.kind}, not {shown}") from None


def _path(cls: type, value: object) -> Path:
    if cls is not Path or not isinstance(value, str) or not value:
        raise TypeError
    return Path(value).expanduser()


def read_file(path: Path) -> dict[str, object]:
    """Read a TOML file. Raises ``SetupError``."""
    try:
        with path.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} is not valid TOML: {error}") from None


#: Environment variables that Kubernetes sets in every container if the namespace has a service
#: "antiphon". They are not settings.
_KUBERNETES = re.compile(r"ANTIPHON(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT)|PORT_\d+_)")


def variable_name(name: str) -> str:
    """Return the name of an option's environment variable."""
    return "ANTIPHON_" + name.upper().replace(".", "_")


def flag_name(name: str) -> str:
    """Return the default command-line flag of an option."""
    return "--" + re.sub("[._]", "-", name)


def environment_options(
    environ: Mapping[str, str], known: Iterable[Option], *, besides: Iterable[str] = ()
) -> dict[str, str]:
    """Read options from environment variables. Returns a dict from option name to text.

    ``besides``: variables to ignore. Raises ``SetupError`` for unknown variables that begin with
    ``ANTIPHON_``.
    """
    by_env = {option.env: option.name for option in known}
    found: dict[str, str] = {}
    for variable, text in environ.items():
        if not variable.startswith("ANTIPHON_") or variable in besides:
            continue
        if _KUBERNETES.match(variable) or re.match(r"(tcp|udp)://", text):
            continue
        if variable not in by_env:
            raise SetupError(f"{variable} is unknown{did_you_mean(variable, by_env)}")
        found[by_env[variable]] = text
    return found


_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_T = TypeVar("_T")


def resolve_variables(value: _T, variables: Mapping[str, str], where: str = "") -> _T:
    """Return settings in which each text ``$NAME`` is replaced by the environment variable
    ``NAME``. ``value``: a struct of settings, or a value in it. ``where``: its name, for the error.
    Raises ``SetupError`` if the variable is unset or empty."""
    return cast(_T, _resolved(value, variables, where))


def _resolved(value: Any, variables: Mapping[str, str], where: str) -> object:
    if isinstance(value, str) and (found := _VARIABLE.fullmatch(value)):
        if not variables.get(found[1]):
            raise SetupError(f"{where}: the environment variable is not set or empty: {found[1]}")
        return variables[found[1]]
    prefix = f"{where}." if where else ""
    if isinstance(value, Struct):
        names = value.__struct_fields__
        fields = {n: _resolved(getattr(value, n), variables, prefix + n) for n in names}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, Mapping):
        return {n: _resolved(each, variables, f"{prefix}{n}") for n, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_resolved(each, variables, where) for each in value)
    return value


def split_list(text: str) -> list[str]:
    """Split a list that is separated by commas. Empty entries are left out."""
    return [part.strip() for part in text.split(",") if part.strip()]


#: Names of options in llama.cpp, vLLM, SGLang and Ollama, and guesses at ours → ours.
_FOREIGN_NAMES: Mapping[str, str] = {
    "address": "source",
    "api_base": "source",
    "base_url": "source",
    "endpoint": "source",
    "chat_template_kwargs": "template_kwargs",
    "ctx_size": "context_size",
    "lora": "adapters",
    "lora_modules": "adapters",
    "max_model_len": "context_size",
    "max_num_seqs": "parallel",
    "mmproj": "projector",
    "model": "source",
    "model_path": "source",
    "n_ctx": "context_size",
    "n_gpu_layers": "gpu_layers",
    "n_parallel": "parallel",
    "n_threads": "threads",
    "ngl": "gpu_layers",
    "num_ctx": "context_size",
    "num_gpu": "gpu_layers",
    "num_thread": "threads",
    "served_model_name": "aliases",
    "system": "instructions",
    "system_prompt": "instructions",
    "temp": "temperature",
    "upstream": "source",
    "upstream_url": "source",
    "url": "source",
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" if the known name X is similar to ``name``, or if ``name`` is what
    other model servers call X. Otherwise return "". If ``name`` is the key of a setting in a table,
    X is this setting; if it is another server's name for an option of models, X is this option."""
    names = list(known)
    found = [each for each in names if each.rpartition(".")[2] == name]
    ours = _FOREIGN_NAMES.get(name.replace("-", "_"))
    if ours in names:
        found = [ours]
    elif len(found) != 1:
        found = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if ours is not None and not found:
        found = [f"{ours} in [models.NAME]"]
    return f"; did you mean {found[0]}?" if found else ""


# --- text ----------------------------------------------------------------------------------------

_SWITCH = "true or false"
#: Type in words of a ``Switch``.
AUTO_SWITCH = '"auto", true or false'
#: Type of a setting for an optional feature. ``auto``: on if the feature is installed and works.
#: ``True``: the server does not start without the feature.
Switch = bool | Literal["auto"]


def literal(value: object) -> str:
    """Format a value as it would be written in a settings file."""
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
    # TOML does not allow DEL in texts, but JSON does.
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def _bare(info: inspect.Type) -> inspect.Type:
    """Return a type without metadata and without None: for ``int | None``, return ``int``."""
    if isinstance(info, inspect.Metadata):
        return _bare(info.type)
    if isinstance(info, inspect.UnionType):
        return next(_bare(arm) for arm in info.types if not isinstance(arm, inspect.NoneType))
    return info


def _kind(info: inspect.Type, hint: Any) -> str:
    bare = _bare(info)
    if isinstance(bare, inspect.LiteralType):  # msgspec sorts the values
        return " or ".join(json.dumps(value) for value in _values(hint))
    return _KIND_NAMES[type(bare)](bare)


def _values(hint: Any) -> tuple[Any, ...]:
    """Return the values of the ``Literal`` in a type hint, in the order of the source code."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((found for arm in get_args(hint) if (found := _values(arm))), ())


def _bounds(noun: str) -> Callable[[Any], str]:
    def describe(info: Any) -> str:
        if info.ge is not None and info.le is not None:
            return f"{noun} from {info.ge} to {info.le}"
        if info.ge is not None:
            return f"{noun}, {info.ge} or more"
        if info.gt is not None:
            return f"{noun} above {info.gt}"
        return noun

    return describe


def _item_kind(info: inspect.Type) -> str:
    """Return the kind of the entries of a list."""
    if isinstance(info, inspect.LiteralType):
        return " or ".join(json.dumps(value) for value in info.values)
    return "texts"


_KIND_NAMES: Mapping[type[inspect.Type], Callable[[Any], str]] = {
    inspect.BoolType: lambda info: _SWITCH,
    inspect.CustomType: lambda info: "a path",
    inspect.DictType: lambda info: "a table",
    inspect.FloatType: _bounds("a number"),
    inspect.IntType: _bounds("a whole number"),
    inspect.StrType: lambda info: "a text",
    inspect.VarTupleType: lambda info: f"a list of {_item_kind(info.item_type)}",
}
