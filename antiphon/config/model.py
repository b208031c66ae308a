"""Settings of one served model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .options import declare

#: Model that is served if the settings contain no model.
DEFAULT_MODEL = "SmolLM2-135M-Instruct"

_Count = Annotated[int, Meta(ge=1)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Temperature = Annotated[float, Meta(ge=0, le=2)]
_Limit = Annotated[int, Meta(ge=0)]
_Penalty = Annotated[float, Meta(gt=0)]


class Model(Struct, frozen=True, kw_only=True):
    """The settings of one served model, from the table ``[models.NAME]`` of a settings file.

    Sampling options, such as ``temperature``, are defaults for requests that do not set them. If a
    sampling option is not set here either, the value in the model's files is used.
    """

    source: Annotated[
        str,
        declare(
            "Source of the model: a GGUF file, a folder with a GGUF file, a folder in the "
            "format of Hugging Face, a model at Hugging Face (`hf:owner/repo/file.gguf`, "
            "`owner/repo:Q4_K_M`, or `hf:owner/repo` for a folder), or the URL of an "
            "upstream. For a URL, set `engine` to the API of the upstream. For several "
            "upstreams with the same model: a list of URLs, or one text with URLs separated "
            "by commas. Not needed for an engine that includes its model."
        ),
    ] = ""
    engine: Annotated[
        str,
        declare(
            "Engine that runs the model (see engines.md). `auto`: `openvino` if it is "
            "installed and supports the model with its settings, and `parallel` is at least "
            "8, and all tenants may share cached prefixes; otherwise `llama`."
        ),
    ] = "llama"
    load: Annotated[
        Literal["start", "demand"],
        declare(
            "When the model is loaded: at the start of the server (`start`), or at its first "
            "request (`demand`). A model that does not fit into `model_memory_mb` at the "
            "start is loaded at its first request."
        ),
    ] = "start"
    idle_unload_s: Annotated[
        float,
        declare(
            (
                "Unload the model after this number of seconds without a request. The next "
                "request loads it again. 0: never unload it."
            ),
            ge=0,
        ),
    ] = 0
    memory_mb: Annotated[
        _Count | None,
        declare(
            "Memory in MiB that the loaded model counts for in `model_memory_mb`. Unset: an "
            "estimate from the sizes of its weights and its key-value cache."
        ),
    ] = None
    aliases: Annotated[
        tuple[str, ...],
        declare(
            "Additional names of the model. They help with clients whose behaviour "
            "depends on the model's name."
        ),
    ] = ()
    context_size: Annotated[
        _Count | None,
        declare(
            "Context size in tokens, for prompt and output together. Unset: the size for "
            "which the model is trained; with `llama`, `openvino` and `transformers`, at "
            "most 8192."
        ),
    ] = None
    threads: Annotated[
        _Count | None, declare("Number of CPU threads. Unset: the global `threads`.")
    ] = None
    parallel: Annotated[
        int,
        declare(
            (
                "Maximum number of requests for which the engine generates tokens at the same "
                "time. Further requests wait."
            ),
            ge=1,
        ),
    ] = 4
    prompt_cache_mb: Annotated[
        _Limit | None,
        declare(
            "Main memory in MiB in which `llama` keeps the states of prompts that other prompts "
            "have displaced (see engines.md). 0: none. Unset: a quarter of the memory that is free "
            "when the model is loaded, divided by the number of models with this engine."
        ),
    ] = None
    gpu_layers: Annotated[
        int,
        declare(
            (
                "Number of layers that run on the GPU, with `llama`, `llama_embeddings` and "
                "`llama_rerank`. -1: "
                "as many as fit. 0: none."
            ),
            ge=-1,
        ),
    ] = -1
    template: Annotated[
        Path | None,
        declare("File with a Jinja chat template that replaces the chat template of the model."),
    ] = None
    template_kwargs: Annotated[
        dict[str, Any],
        declare(
            (
                "Variables passed to the chat template. The `chat_template_kwargs` of a "
                "request override them."
            ),
            kind="a table",
        ),
    ] = {}
    reasoning_format: Annotated[
        str | None,
        declare(
            "Format of the model's reasoning: a name from models.md, or an empty text "
            "for no reasoning. Unset: detected from the chat template."
        ),
    ] = None
    tool_format: Annotated[
        str | None,
        declare(
            "Format of the model's tool calls: a name from models.md. Unset: detected "
            "from the chat template."
        ),
    ] = None
    thinking_budgets: Annotated[
        dict[str, _Limit],
        declare(
            (
                "For models that do not support reasoning efforts: the maximum number of "
                "reasoning tokens for each reasoning effort, such as `low = 512`. The "
                "`thinking_token_budget` of a request overrides it."
            ),
            kind="a table",
        ),
    ] = {}
    dialect: Annotated[
        str | None,
        declare(
            "Format of prompts and output: `chat` (the chat template), `harmony` (gpt-oss), "
            "or a dialect of an installed package. Unset: `harmony` for gpt-oss without "
            "`template`, `chat` for all other models."
        ),
    ] = None
    vocabulary: Annotated[
        Path | None,
        declare(
            "Folder with the file `o200k_base.tiktoken`, which gpt-oss needs. Unset: the "
            "copy that the extra `harmony` installs."
        ),
    ] = None
    projector: Annotated[
        Path | None,
        declare(
            "Image encoder of a GGUF model (`mmproj-….gguf`). Unset: the image encoder "
            "in the folder `source`, if it has exactly one."
        ),
    ] = None
    unsupported_modality: Annotated[
        Literal["describe", "refuse"],
        declare(
            "What happens to images, audio and video that the model cannot read. `refuse`: the "
            "request is rejected with HTTP status 400. `describe`: a note in the prompt replaces "
            "the part, and the response lists it in `omitted_parts`."
        ),
    ] = "refuse"
    adapters: Annotated[
        dict[str, str],
        declare(
            (
                "LoRA adapters: name under which requests select the adapter → file or folder of "
                "the adapter, or its name at the upstream."
            ),
            kind="a table",
        ),
    ] = {}
    upstream_model: Annotated[
        str | None,
        declare(
            "Name of the model at the upstream. Unset: the first model in the "
            "upstream's list of models."
        ),
    ] = None
    router: Annotated[
        Literal["vllm-router", "smg", "sglang", "llm-d", "dynamo", "vllm", "sglang-sessions"]
        | None,
        declare(
            "If the upstream is a router in front of several engines: the kind of router. "
            "Antiphon then sends a key with which the router keeps each conversation on one "
            "engine. Also the kind of an engine that uses such a key itself (see upstreams.md)."
        ),
    ] = None
    api_key: Annotated[
        str | None,
        declare(
            "API key for the upstream.",
            secret=True,
        ),
    ] = None
    engine_options: Annotated[
        dict[str, Any],
        declare(
            (
                "Additional options of the engine, under the names that the engine uses (see "
                "engines.md)."
            ),
            kind="a table",
        ),
    ] = {}
    max_output_tokens: Annotated[
        _Count | None,
        declare(
            "Maximum number of output tokens for requests that do not set `max_output_tokens`."
        ),
    ] = None
    instructions: Annotated[
        str | None,
        declare(
            "Default system prompt, for conversations without a system or developer message whose "
            "requests do not set `instructions`."
        ),
    ] = None
    moderation: Annotated[
        Literal["granite_guardian", "llama_guard", "qwen_guard", "shield_gemma"] | None,
        declare(
            "The model is a guard model that is asked and answers in this form. Requests can name "
            "it in `moderation`, and at `/v1/moderations`."
        ),
    ] = None
    temperature: Annotated[_Temperature | None, declare("Default sampling temperature.")] = None
    top_p: Annotated[
        _Share | None,
        declare(
            "Default `top_p` (nucleus sampling): only the most likely tokens whose "
            "probabilities add up to this value are considered."
        ),
    ] = None
    top_k: Annotated[
        _Limit | None,
        declare(
            "Default `top_k`: only this number of most likely tokens is considered. 0: all tokens."
        ),
    ] = None
    min_p: Annotated[
        _Share | None,
        declare(
            "Default `min_p`: only tokens with at least this probability, relative to "
            "the most likely token, are considered."
        ),
    ] = None
    repetition_penalty: Annotated[
        _Penalty | None,
        declare(
            "Default repetition penalty. Values above 1 make repetitions less likely. 1: no "
            "penalty."
        ),
    ] = None
    price_input: Annotated[
        float,
        declare("Price of a million input tokens in US dollars, for the costs of the usage.", ge=0),
    ] = 0
    price_cached: Annotated[
        float | None,
        declare(
            "Price of a million input tokens that were found in a cache. Unset: `price_input`."
        ),
    ] = None
    price_output: Annotated[
        float, declare("Price of a million output tokens in US dollars.", ge=0)
    ] = 0
