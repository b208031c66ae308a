"""The stored form of the request of a background run.

The stored form includes the secrets of the tools, such as the authorization of an MCP server,
because another server may have to continue the run. The secrets are encrypted with the keys that
also encrypt ``encrypted_content``.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict, replace

from antiphon.errors import CannotContinue
from antiphon.security.encryption import DecryptionError, Encryptor
from antiphon.wire.request import CreateResponse
from antiphon.wire.tools import Tool

_encode = msgspec.json.Encoder().encode
_decode_tools = msgspec.json.Decoder(tuple[Tool, ...]).decode

_PURPOSE = "tools of a background run"


class StoredRequest(CreateResponse, frozen=True, kw_only=True):
    """A request without its input and without readable secrets. The input is in the stored
    response.

    ``sealed_tools``: the encrypted tools with their secrets; None if the tools have no secrets.
    ``api_key``: the name of the API key to which the usage is charged. ``choice``: for a line of a
    batch, the index of this answer to it; None for other requests.
    """

    sealed_tools: str | None = None
    api_key: str | None = None
    choice: int | None = None

    @property
    def is_line(self) -> bool:
        """Whether the request is a line of a batch."""
        return self.choice is not None

    @classmethod
    def seal(
        cls,
        request: CreateResponse,
        public_tools: tuple[Tool, ...],
        seal: Encryptor,
        tenant: str,
        *,
        api_key: str | None = None,
        choice: int | None = None,
    ) -> StoredRequest:
        """Return the form of ``request`` that is stored. It has no input, and the secrets of its
        tools are encrypted with ``seal``. ``public_tools``: the request's tools in a form without
        secrets. They are stored unencrypted."""
        sealed = None
        if request.tools != public_tools:
            sealed = seal.encrypt(_encode(request.tools), purpose=_PURPOSE, tenant=tenant)
        fields = asdict(request) | {"input": None, "tools": public_tools}
        fields.pop("shape", None)
        return cls(**fields, sealed_tools=sealed, api_key=api_key, choice=choice)

    def with_secrets(self, seal: Encryptor, tenant: str) -> StoredRequest:
        """Return the request with the decrypted secrets of its tools. Raises ``CannotContinue`` if
        this server cannot decrypt them."""
        if self.sealed_tools is None:
            return self
        try:
            tools = seal.decrypt(self.sealed_tools, purpose=_PURPOSE, tenant=tenant)
        except DecryptionError:
            raise CannotContinue("this server cannot decrypt the secrets of its tools") from None
        return replace(self, tools=_decode_tools(tools), sealed_tools=None)
