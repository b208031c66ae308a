"""Stored prompts, to which requests refer by id. They are template files in a folder.

``FOLDER/ID/VERSION.toml`` (or ``.json``) is one version of a prompt. The file contains fields of a
request with their values. ``{{name}}`` in a text is a variable. Prompts belong to the operator and
are shared by all tenants. A version that was written through the API never changes.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    RequestError,
    SetupError,
    invalid_field,
)
from antiphon.resources.input_items import check_call_outputs
from antiphon.stream.writer import Ids
from antiphon.wire import items as it
from antiphon.wire.cursors import page_of
from antiphon.wire.json_types import JsonObject
from antiphon.wire.pagination import Page
from antiphon.wire.parsing.errors import missing_parameter, unknown_parameter
from antiphon.wire.parsing.request_checks import check_tools
from antiphon.wire.parsing.requests import read_template
from antiphon.wire.request import CreateResponse
from antiphon.wire.resources.prompts import (
    TEMPLATE_FIELDS,
    CreatePrompt,
    PromptResource,
    PromptValue,
)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}\Z")
_VERSION = re.compile(r"([1-9][0-9]{0,8})\.(toml|json)\Z")
#: File that marks a deleted version. With this file, the version's number is not used again.
_DELETED = re.compile(r"([1-9][0-9]{0,8})\.gone\Z")
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")


class ResolvedPrompt(Struct, frozen=True):
    """A request merged with its stored prompt.

    ``leading_items``: the messages of the prompt. They precede all other items that the model sees
    in this request. They do not become part of the conversation, so the model does not see them in
    later requests.
    """

    request: CreateResponse
    leading_items: tuple[it.Item, ...] = ()


class Prompts:
    """The stored prompts, to which requests refer by id. They are files in ``folder``. If
    ``folder`` is None, there are no prompts, and ``create`` raises ``InvalidRequest``."""

    def __init__(self, folder: Path | None = None, *, ids: Ids | None = None) -> None:
        self._folder = folder
        self._ids = ids or (lambda prefix: f"{prefix}_{secrets.token_hex(24)}")

    def check(self) -> None:
        """Read and validate all prompt files. Raises ``SetupError`` with the name of an invalid
        file."""
        if self._folder is None or not self._folder.is_dir():
            return
        for folder in sorted(self._folder.iterdir()):
            if folder.name.startswith("."):
                continue
            if not folder.is_dir() or not _ID.match(folder.name):
                raise SetupError(
                    f"{folder} is not a prompt: it must be a folder whose name has only letters,"
                    " digits, '_' and '-'"
                )
            for file in sorted(folder.iterdir()):
                _check_file(file)

    # --- for requests ----------------------------------------------------------------------------

    async def resolve(self, request: CreateResponse) -> ResolvedPrompt:
        """Merge a request with the stored prompt that it names. The prompt's values fill the fields
        that the request does not set.

        The merged request names the version of the prompt that was used. Raises ``NotFound`` for an
        unknown prompt. Raises ``InvalidRequest`` for missing or unknown variables.
        """
        ref = request.prompt
        if ref is None:
            return ResolvedPrompt(request)
        version, raw = await asyncio.to_thread(self._load, ref.id, ref.version or None)
        stored = _read(raw, f"{ref.id}, version {version}")
        stored = _substitute(stored, ref.variables or {})
        request_values = {name: getattr(request, name) for name in TEMPLATE_FIELDS}
        merged = {
            name: getattr(stored, name)
            for name, value in request_values.items()
            if value in (None, ()) and name != "input"
        }
        request = replace(request, **merged, prompt=replace(ref, version=version))
        leading_items = tuple(
            replace(item, id=item.id or self._ids("msg")) for item in stored.input or ()
        )
        past = request.previous_response_id or request.conversation
        if not (leading_items or request.instructions or request.input or past):
            raise missing_parameter("input")
        check_tools(replace(request, input=(*leading_items, *(request.input or ()))))
        return ResolvedPrompt(request, leading_items)

    # --- for the operator ------------------------------------------------------------------------

    async def create(self, request: CreatePrompt) -> PromptResource:
        """Write a new version of a prompt, and create the prompt if it does not exist. Raises
        ``InvalidRequest`` for an invalid id."""
        id = request.id if request.id is not None else self._ids("pmpt")
        if not _ID.match(id):
            raise invalid_field(
                "id",
                "expected up to 128 letters, digits, '_' and '-', the first of them "
                "a letter or a digit.",
            )
        version = await asyncio.to_thread(self._write, id, request.template)
        return await self.retrieve(id, version)

    async def retrieve(self, id: str, version: str | None = None) -> PromptResource:
        """Return a version of a prompt. If ``version`` is None, return the newest version. Raises
        ``NotFound``."""
        found, raw = await asyncio.to_thread(self._load, id, version)
        return PromptResource(
            id=id,
            version=found,
            versions=await asyncio.to_thread(self._versions, id),
            variables=_variables(_read(raw, id)),
            template=raw,
        )

    async def list(self) -> Page[PromptResource]:
        """Return the newest version of each prompt, sorted by prompt id."""
        return page_of(await asyncio.to_thread(lambda: tuple(self._all())))

    async def delete(self, id: str, version: str | None = None) -> None:
        """Delete one version of a prompt, or the whole prompt if ``version`` is None. Raises
        ``NotFound``."""
        await asyncio.to_thread(self._delete, id, version)

    # --- files -----------------------------------------------------------------------------------

    def _prompt_folder(self, id: str) -> Path:
        if self._folder is None or not _ID.match(id):
            raise _not_found(id)
        return self._folder / id

    def _files(self, id: str) -> dict[str, Path]:
        """Return a dict from version to file for a prompt, oldest version first. The dict is empty
        if the prompt does not exist."""
        folder = self._prompt_folder(id)
        names = os.listdir(folder) if folder.is_dir() else []
        found = {match[1]: folder / name for name in names if (match := _VERSION.match(name))}
        return dict(sorted(found.items(), key=lambda pair: int(pair[0])))

    def _versions(self, id: str) -> tuple[str, ...]:
        return tuple(self._files(id))

    def _all(self) -> Iterator[PromptResource]:
        if self._folder is None or not self._folder.is_dir():
            return
        for id in sorted(name for name in os.listdir(self._folder) if _ID.match(name)):
            if versions := self._versions(id):
                yield PromptResource(id=id, version=versions[-1], versions=versions)

    def _load(self, id: str, version: str | None) -> tuple[str, JsonObject]:
        files = self._files(id)
        if not files:
            raise _not_found(id)
        number = version or next(reversed(files))
        if number not in files:
            raise NotFound(
                f"Version '{number}' of prompt with id '{id}' not found.",
                param="prompt.version",
                code="prompt_not_found",
            )
        try:
            return number, _parse(files[number])
        except OSError:
            raise _not_found(id) from None  # deleted in the meantime
        except ValueError:
            raise InvalidRequest(
                f"The prompt '{id}', version {number}, cannot be read.", param="prompt.id"
            ) from None

    def _write(self, id: str, raw: JsonObject) -> str:
        """Write a new version of a prompt atomically and return the version's number. ``raw``: the
        content of the version. An existing version is never overwritten."""
        if self._folder is None:
            raise InvalidRequest(
                "This server cannot store prompts: its prompts_dir is not configured."
            )
        folder = self._prompt_folder(id)
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{secrets.token_hex(8)}"
        try:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(raw), indent=2))
            for _ in range(100):  # another process may use the number first
                version = str(self._last(folder) + 1)
                try:
                    os.link(draft, folder / f"{version}.json")
                except FileExistsError:
                    continue
                return version
        finally:
            draft.unlink(missing_ok=True)
        raise Conflict(f"Other requests are writing the prompt '{id}'. Please retry.")

    def _last(self, folder: Path) -> int:
        names = os.listdir(folder)
        numbers = [m[1] for name in names if (m := _VERSION.match(name) or _DELETED.match(name))]
        return max(map(int, numbers), default=0)

    def _delete(self, id: str, version: str | None) -> None:
        files = self._files(id)
        if not files:
            raise _not_found(id)
        if version is None:
            deleted = list(files)
        else:
            self._load(id, version)
            deleted = [version]
        for each in deleted:
            (files[each].parent / f"{each}.gone").touch()
            files[each].unlink(missing_ok=True)


def _check_file(file: Path) -> None:
    if file.name.startswith(".") or _DELETED.match(file.name):
        return
    if not _VERSION.match(file.name):
        raise SetupError(f"{file} is not a prompt version: name it 1.toml, 2.toml and so on")
    try:
        _read(_parse(file), str(file))
    except (OSError, ValueError) as error:
        raise SetupError(f"{file} cannot be read: {error}") from None
    except RequestError as error:
        raise SetupError(f"{file}: {error.message}") from None


def _parse(file: Path) -> JsonObject:
    """Parse a TOML or JSON file. Raises ``OSError`` and ``ValueError``."""
    text = file.read_bytes()
    if file.suffix == ".toml":
        return tomllib.loads(text.decode())
    return msgspec.json.decode(text, type=JsonObject)


def _read(raw: JsonObject, name: str) -> CreateResponse:
    """Convert the content of a prompt file to a request. ``name``: the prompt's name for error
    messages. Raises ``InvalidRequest`` if the content is not valid."""
    try:
        stored = read_template(raw)
        check_call_outputs(stored.input or ())
    except InvalidRequest as error:
        raise InvalidRequest(
            f"The prompt {name} cannot be used: {error.message}", param="prompt.id"
        ) from None
    return stored


def _not_found(id: str) -> NotFound:
    return NotFound(f"Prompt with id '{id}' not found.", param="prompt.id", code="prompt_not_found")


# --- variables -----------------------------------------------------------------------------------


def _texts(stored: CreateResponse) -> Iterator[str]:
    yield stored.instructions or ""
    for item in stored.input or ():
        yield from (part.text for part in item.message_parts if hasattr(part, "text"))


def _variables(stored: CreateResponse) -> tuple[str, ...]:
    """Return the names of a prompt's variables, in the order in which they appear in its texts."""
    return tuple(dict.fromkeys(name for text in _texts(stored) for name in _VARIABLE.findall(text)))


def _substitute(stored: CreateResponse, values: Mapping[str, PromptValue]) -> CreateResponse:
    """Replace the variables with their values. Variables inside a value are not replaced."""
    names = _variables(stored)
    for name in names:
        if name not in values:
            raise missing_parameter(f"prompt.variables.{name}")
    for name in values:
        if name not in names:
            raise unknown_parameter(f"prompt.variables.{name}")
    instructions = stored.instructions
    if instructions is not None:
        instructions = _VARIABLE.sub(lambda found: _text(found[1], values), instructions)
    items = tuple(
        replace(item, content=tuple(_parts(item, values))) if isinstance(item, it.Message) else item
        for item in stored.input or ()
    )
    return replace(stored, instructions=instructions, input=items or None)


def _text(name: str, values: Mapping[str, PromptValue]) -> str:
    value = values[name]
    if isinstance(value, it.InputText):
        return value.text
    if not isinstance(value, str):
        param = f"prompt.variables.{name}"
        raise InvalidRequest(
            f"Invalid type for '{param}': expected a string, because the prompt uses the variable "
            "inside a text.",
            param=param,
            code="invalid_type",
        )
    return value


def _parts(message: it.Message, values: Mapping[str, PromptValue]) -> Iterator[it.Part]:
    """Yield the parts of a message with the variables replaced by their values. A value that is not
    text, such as an image, becomes a separate part."""
    for part in message.content:
        if not isinstance(part, it.InputText):
            text = getattr(part, "text", None)
            replaced = text and _VARIABLE.sub(lambda found: _text(found[1], values), text)
            yield part if text is None else replace(part, text=replaced)
            continue
        text = ""
        yielded = False
        for at, piece in enumerate(_VARIABLE.split(part.text)):
            value = values[piece] if at % 2 else piece
            if isinstance(value, str | it.InputText):
                text += value if isinstance(value, str) else value.text
                continue
            if text:
                yield replace(part, text=text)
            yield value
            text, yielded = "", True
        if text or not yielded:
            yield replace(part, text=text)
