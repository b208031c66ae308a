"""What a part gives: a URL to fetch, bytes written into the request, or the id of a kept file."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct

from antiphon.wire import items as it

__all__ = ["Bad", "Given", "given_in", "url_of"]

Why = Literal["none", "base64", "unknown", "empty", "large", "pixels", "format", "broken"]


class Bad(Exception):
    """What a part gives cannot be used. ``why``: one word; the message says more."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why: Why = why


class Given(Struct, frozen=True, kw_only=True):
    """One of three, and how the file is called, if it is told."""

    url: str | None = None
    inline: str | None = None
    file_id: str | None = None
    name: str = ""


def given_in(part: it.InputImage | it.InputFile | it.ComputerScreenshot) -> Given:
    """What a part gives. Raises ``Bad`` if it gives nothing."""
    if part.file_id is not UNSET and part.file_id:
        return Given(file_id=part.file_id, name=_name(part))
    if isinstance(part, it.InputFile):
        if part.file_data is not UNSET and part.file_data:
            return Given(inline=part.file_data, name=_name(part))
        url = part.file_url
    else:
        url = part.image_url
    if url is UNSET or not url:
        raise Bad("none", "it gives neither bytes nor a URL nor a file_id")
    if url[:5].lower() == "data:":
        return Given(inline=url, name=_name(part))
    return Given(url=url, name=_name(part))


def url_of(part: it.InputImage | it.InputFile | it.ComputerScreenshot) -> str | None:
    """The URL that is to be fetched, if there is one."""
    try:
        return given_in(part).url
    except Bad:
        return None


def _name(part: it.InputImage | it.InputFile | it.ComputerScreenshot) -> str:
    name = part.filename if isinstance(part, it.InputFile) else UNSET
    return "" if name is UNSET else name
