"""Decode bytes that a request contains as a ``data:`` URL or as base64."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes


class InvalidEncoding(ValueError):
    """Error for a text that is neither a ``data:`` URL nor base64. The message may be shown to the
    client."""


def decode_inline(text: str) -> tuple[str, bytes]:
    """Return the media type and the content of a ``data:`` URL (RFC 2397) or of a base64 text. The
    media type of a base64 text is "".

    Raises ``InvalidEncoding`` for any other text.
    """
    mime, body, encoded = "", text, True
    if text[:5].lower() == "data:":
        head, comma, body = text[5:].partition(",")
        if not comma:
            raise InvalidEncoding("it is not a data URL")
        mime, _, parameters = head.partition(";")
        encoded = parameters.lower().rpartition(";")[2].strip() == "base64"
    if not encoded:
        return mime.lower(), unquote_to_bytes(body)
    try:
        return mime.lower(), base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidEncoding("it is not valid base64") from None
