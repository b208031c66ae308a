"""Settings of one served model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .options import declare

__all__ = ["DEFAULT_MODEL", "Model"]

#: Model that is served if the settings contain no model.
DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_Count = Annotated[int, Meta(ge=1)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Temperature = Annotated[float, Meta(ge=0, le=2)]
_Limit = Annotated[int, Meta(ge=0)]
_Penalty = Annotated[float, Meta(gt=0)]


class Model(Struct, frozen=True, kw_only=True):
    """A served model: ``[models.NAME]``.

    The sampling options (such as ``temperature``) are defaults for requests that do not set them.
    If an option is not set here, the value in the model's files is used.
    """

    source: Annotated[
        str,
        declare(
            "Model source: a GGUF file, a folder with one, `hf:owner/repo/file.gguf`, "
            "`owner/repo:Q4_K_M`, a Hugging Face folder, or the URL of an upstream; a list "
            "of URLs, or one text with commas, for several servers of the same model. Not "
            "needed by an engine that brings its own model."
        ),
    ] = ""
    engine: Annotated[
        str,
        declare(
            "The engine that runs the model. `auto`: for a model in files, `openvino` where it is "
            "the faster one, otherwise `llama`."
        ),
    ] = "llama"
    load: Annotated[
        Literal["start", "demand"],
        declare("When the model is loaded: at server start, or on its first request."),
    ] = "start"
    idle_unload_s: Annotated[
        float,
        declare(
            ("Unload the model after this many seconds without a request; 0 never unloads it."),
            ge=0,
        ),
    ] = 0
    memory_mb: Annotated[
        _Count | None,
        declare(
            "Memory that the loaded model needs in MiB, for `model_memory_mb`. Unset: estimated "
            "from the sizes of its weights and of its key-value cache."
        ),
    ] = None
    aliases: Annotated[
        tuple[str, ...],
        declare("Additional model names. Some clients change their behaviour by model name."),
    ] = ()
    context_size: Annotated[
        _Count | None,
        declare(
            "Context window in tokens (prompt and output). Unset: the model's trained "
            "size, at most 8192."
        ),
    ] = None
    threads: Annotated[_Count | None, declare("CPU threads. Unset: the global `threads`.")] = None
    parallel: Annotated[int, declare("Number of requests generated concurrently.", ge=1)] = 4
    gpu_layers: Annotated[
        int, declare("Number of layers offloaded to the GPU; -1 for as many as fit.", ge=-1)
    ] = -1
    template: Annotated[
        Path | None, declare("A Jinja chat template that replaces the model's own.")
    ] = None
    template_kwargs: Annotated[
        dict[str, Any],
        declare(
            (
                "Variables passed to the chat template. A request's `chat_template_kwargs` "
                "take precedence."
            ),
            kind="a table",
        ),
    ] = {}
    reasoning_format: Annotated[
        str | None,
        declare(
            "Format of the model's reasoning, a name from models.md; empty for none. "
            "Unset: detected from the chat template."
        ),
    ] = None
    tool_format: Annotated[
        str | None,
        declare(
            "Format of the model's tool calls, a name from models.md. Unset: detected "
            "from the chat template."
        ),
    ] = None
    thinking_budgets: Annotated[
        dict[str, _Limit],
        declare(
            (
                "Maximum reasoning tokens per effort (`low = 512`), for models without effort "
                "levels. A request's `thinking_token_budget` takes precedence."
            ),
            kind="a table",
        ),
    ] = {}
    dialect: Annotated[
        str | None,
        declare(
            "Prompt format: chat, harmony, or a dialect of an installed package. Unset: harmony "
            "for gpt-oss, otherwise the chat template."
        ),
    ] = None
    vocabulary: Annotated[
        Path | None,
        declare(
            "A folder with `o200k_base.tiktoken`, for gpt-oss. Unset: the copy in an "
            "installed package."
        ),
    ] = None
    projector: Annotated[
        Path | None,
        declare(
            "Image encoder of a GGUF model (`mmproj-….gguf`). Unset: the only one in the "
            "source folder."
        ),
    ] = None
    images: Annotated[
        Literal["note", "refuse"],
        declare(
            "Images sent to a model without vision: replace them with a note, or reject "
            "the request."
        ),
    ] = "note"
    adapters: Annotated[
        dict[str, str],
        declare("LoRA adapters: model name → adapter file or folder.", kind="a table"),
    ] = {}
    upstream_model: Annotated[
        str | None,
        declare("Model name sent to the upstream. Unset: the upstream's only or first model."),
    ] = None
    router: Annotated[
        Literal["vllm-router", "smg", "sglang", "llm-d", "dynamo"] | None,
        declare(
            "The router at the upstream's address, which keeps each conversation on one engine "
            "by a key that Antiphon sends."
        ),
    ] = None
    api_key: Annotated[
        str | None,
        declare("API key for the upstream; `$NAME` reads an environment variable.", secret=True),
    ] = None
    engine_options: Annotated[
        dict[str, Any],
        declare("Additional engine options, by the engine's own names.", kind="a table"),
    ] = {}
    max_output_tokens: Annotated[
        _Count | None, declare("Default maximum of output tokens for requests that set none.")
    ] = None
    temperature: Annotated[_Temperature | None, declare("Sampling temperature.")] = None
    top_p: Annotated[_Share | None, declare("Nucleus sampling.")] = None
    top_k: Annotated[
        _Limit | None, declare("Number of most likely tokens considered; 0 for all.")
    ] = None
    min_p: Annotated[
        _Share | None, declare("Minimum probability relative to the most likely token.")
    ] = None
    repetition_penalty: Annotated[
        _Penalty | None, declare("Values above 1 make repetitions less likely.")
    ] = None
