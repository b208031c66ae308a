"""Embedding models in GGUF files. llama.cpp runs them in a child process."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.engines.gguf.reader import GgufHeader, read_gguf
from antiphon.engines.llama.process import LlamaProcess
from antiphon.engines.llama.server_program import ServerSetup
from antiphon.engines.llama.tokenizer import require_llama
from antiphon.errors import CONTEXT_LENGTH_EXCEEDED, BackendError, InvalidRequest, SetupError

from .base import Prefixes, Role, Text, Vector
from .thread_worker import Piece, ThreadedEmbedder

#: How the vectors of the tokens are combined into the vector of a text → llama.cpp's name for it.
POOLINGS: Mapping[str, str] = {
    "mean": "LLAMA_POOLING_TYPE_MEAN",
    "cls": "LLAMA_POOLING_TYPE_CLS",
    "last": "LLAMA_POOLING_TYPE_LAST",
}
DEFAULT_CONTEXT = 2048


async def load(
    path: Path,
    *,
    threads: int = 1,
    context_size: int | None = None,
    gpu_layers: int = -1,
    pooling: str | None = None,
    prefixes: Prefixes | None = None,
) -> ThreadedEmbedder:
    """Load the GGUF file at ``path`` and return its embedder. Raises ``SetupError`` if the file or
    an argument cannot be used.

    - ``threads``: the number of CPU threads that compute vectors.
    - ``context_size``: the maximum length of a text in tokens, by default 2048. If the model was
      trained for shorter texts only, the length of these texts is the maximum.
    - ``gpu_layers``: how many layers of the model run on the GPU. By default, as many as fit.
    - ``pooling``: how the vectors of the tokens become one vector: one of ``POOLINGS``. Needed only
      if the file does not say it.
    - ``prefixes``: texts that are put before queries and passages.
    """
    require_llama()
    head = await asyncio.to_thread(read_gguf, path)
    size = context_size or DEFAULT_CONTEXT
    context = min(size, int(head.architecture_value("context_length") or size))
    fields = {
        "embedding": True,
        "n_ctx": context,
        "n_parallel": 1,
        # llama.cpp needs a whole text in one batch.
        "n_batch": context,
        "n_ubatch": context,
        "n_gpu_layers": gpu_layers,
    }
    process = LlamaProcess(
        ServerSetup(
            model=str(path), threads=threads, fields=fields, pooling=_pooling(path, head, pooling)
        )
    )
    try:
        await process.start()
    except BaseException:
        await process.close()
        raise
    loop, before = asyncio.get_running_loop(), prefixes or Prefixes()

    async def post(inputs: list[Any]) -> Any:
        await process.start()
        client = process.client
        try:
            return await client.post("/v1/embeddings", {"input": inputs})
        except OSError:
            await process.end(client)
            raise BackendError("The engine is gone: its process ended.") from None

    def call(texts: Sequence[Text], role: Role) -> tuple[list[Vector], int]:
        lead = before.for_role(role)
        inputs = [lead + text if isinstance(text, str) else list(text) for text in texts]
        answer = asyncio.run_coroutine_threadsafe(post(inputs), loop).result()
        return _parse_response(answer, context)

    return ThreadedEmbedder(
        call,
        process.close,
        split=_whole_text,
        dimensions=int(head.architecture_value("embedding_length") or 0),
        vocabulary_size=len(head.metadata.get("tokenizer.ggml.tokens", ())),
    )


def _whole_text(text: Text, role: Role, limit: int) -> list[Piece]:
    """Return the text as one piece, since llama.cpp refuses a text that is longer than the context.
    A token of usual text has about four bytes."""
    return [Piece(text, len(text.encode()) // 4 + 1 if isinstance(text, str) else len(text))]


def _pooling(path: Path, head: GgufHeader, requested: str | None) -> str | None:
    """Return llama.cpp's name of the pooling; None if the file says it. Raises ``SetupError``."""
    if requested is not None:
        if requested not in POOLINGS:
            raise SetupError(f"unknown pooling {requested!r} (known: {', '.join(POOLINGS)})")
        return POOLINGS[requested]
    if not head.architecture_value("pooling_type"):
        raise SetupError(
            f"{path} does not name its pooling: set engine_options.pooling to one of"
            f" {', '.join(POOLINGS)}"
        )
    return None


def _parse_response(answer: Any, context: int) -> tuple[list[Vector], int]:
    if (error := answer.get("error")) is not None:
        if "too large" in error.get("message", ""):
            raise InvalidRequest(
                f"A text of the input is longer than this model's limit of {context} tokens.",
                param="input",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        raise BackendError(f"The engine failed: {error.get('message', 'unknown error')}")
    vectors = [array("f", entry["embedding"]) for entry in answer["data"]]
    return vectors, int(answer["usage"]["prompt_tokens"])
