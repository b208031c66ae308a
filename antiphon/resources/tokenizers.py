"""Tokenize and detokenize text with the tokenizer of a served model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.errors import BackendError, InvalidRequest, Overloaded, unsupported_model
from antiphon.inference.conversation import Options
from antiphon.limits.clients import ANYONE, Client

#: More ids are converted in a thread, because that takes more than a millisecond.
_FEW_IDS = 4096


class TokenizedText(Struct, frozen=True):
    """The token ids of a text. ``context_size``: the context size of the model in tokens. It is
    None if the size is unknown."""

    ids: tuple[int, ...]
    context_size: int | None


class Tokenizers:
    """Tokenizes text for all served models whose tokenizer runs in this server."""

    def __init__(self, models: ModelCatalog) -> None:
        self._models = models

    async def tokenize(self, name: str | None, text: str, client: Client = ANYONE) -> TokenizedText:
        """Return the token ids of a text. They are the same ids that the model gets for this text
        as the prompt of ``/v1/completions``. Raises ``RequestError``."""
        model = await self._load(name, client)
        reply = await model.backend.complete(text, Options())
        if reply.prompt_tokens is None:
            raise _unsupported(model)
        return TokenizedText(reply.prompt_tokens.ids, model.backend.context_size)

    async def detokenize(
        self, name: str | None, ids: Sequence[int], client: Client = ANYONE
    ) -> str:
        """Convert token ids to text. A control token becomes its name in the text, such as
        ``<|im_end|>``. Raises ``RequestError``."""
        model = await self._load(name, client)
        if not model.backend.capabilities.detokenizes:
            raise _unsupported(model)
        try:
            if len(ids) <= _FEW_IDS:
                return model.backend.detokenize(ids)
            return await asyncio.to_thread(model.backend.detokenize, ids)
        except BackendError as error:
            raise InvalidRequest(error.message, param="tokens", code="invalid_value") from None

    async def _load(self, name: str | None, client: Client) -> CatalogModel:
        model = self._models.find(name)
        client.check_model(model.name, name)
        if not await model.backend.ready():
            raise Overloaded(
                f"The model '{model.name}' is being loaded. Please try again in 5s.",
                retry_after_s=5,
                status=503,
                code="model_loading",
            )
        return model


def _unsupported(model: CatalogModel) -> InvalidRequest:
    return unsupported_model(
        f"The tokens of the model '{model.name}' are not known to this server."
    )
