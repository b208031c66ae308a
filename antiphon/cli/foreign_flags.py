"""Command-line flags of other model servers such as vLLM, and the hint that Antiphon prints for
each of these flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from antiphon.support.installation import antiphon_command

_SOURCE = "name the model without a flag: {serve MODEL}"
_CONTEXT = "use --context-size"
_PARALLEL = "use --parallel"
_NAME = "write NAME=SOURCE, or add a name with --aliases"
_KEYS = "make a key with `{key new}` and add it to antiphon.toml"
_ADAPTERS = "set adapters in [models.NAME] of antiphon.toml"
_OPTIONS = "set it in engine_options of [models.NAME] in antiphon.toml"
_TEMPLATE_KWARGS = "set template_kwargs in [models.NAME] of antiphon.toml"
_REQUEST = "set it in the request"
_TLS = "put a proxy that terminates TLS in front of the server"
_PLUGIN = "describe the format in a file, and name its folder with --formats-dir"
_NOT_NEEDED = "it is not needed here: this is always on"
_NOTHING = "there is nothing like it here"
_DETECTED = "it is not needed here: the format is detected"
_SAMPLING = "set sampling options such as --temperature"
_PREFIX = "put a proxy that removes the prefix of paths in front of the server"
_DRAFT = "set speculation and draft_model in engine_options of [models.NAME]"

#: Flag of another server → what to do instead. Braces contain the arguments of an ``antiphon``
#: command. The flags are those of vLLM, SGLang, TensorRT-LLM (trtllm-serve), llama-server,
#: transformers serve and the gpt-oss server. Underscores in them are written as hyphens.
FOREIGN_FLAGS: Mapping[str, str] = {
    # the model
    "--model": _SOURCE,
    "--model-path": _SOURCE,
    "--checkpoint": _SOURCE,
    "--force-model": _SOURCE,
    "--hf-repo": _SOURCE,
    "--hf-file": _SOURCE,
    "-m": _SOURCE,
    "-hf": _SOURCE,
    "-hfr": _SOURCE,
    "--served-model-name": _NAME,
    "--alias": _NAME,
    "-a": _NAME,
    "--download-dir": "use --cache-dir",
    "--backend": "use --engine",
    "--inference-backend": "use --engine",
    "--tokenizer": _OPTIONS,
    "--tokenizer-path": _OPTIONS,
    "--custom-tokenizer": _OPTIONS,
    "--load-format": _OPTIONS,
    "--revision": "download the revision yourself and name its folder: {serve FOLDER}",
    "--trust-remote-code": (
        "code of models runs only with trust_remote_code = true in engine_options of [models.NAME]"
        " in antiphon.toml"
    ),
    "--lora-modules": _ADAPTERS,
    "--enable-lora": _ADAPTERS,
    "--lora": _ADAPTERS,
    "--mmproj": "use --projector",
    "--mmproj-url": "download the file, and use --projector",
    "--hf-token": "set HF_TOKEN in the environment",
    "--offline": "set HF_HUB_OFFLINE=1 in the environment",
    "--embedding": "use --engine llama_embeddings",
    "--embeddings": "use --engine llama_embeddings",
    "--rerank": "use --engine llama_rerank",
    "--reranking": "use --engine llama_rerank",
    "--chat-template-content-format": "it is not needed here: every template gets what it can read",
    "--enable-log-outputs": _NOTHING,
    # size and hardware
    "--max-model-len": _CONTEXT,
    "--context-length": _CONTEXT,
    "--max-seq-len": _CONTEXT,
    "--ctx-size": _CONTEXT,
    "-c": _CONTEXT,
    "--max-num-seqs": _PARALLEL,
    "--max-running-requests": _PARALLEL,
    "--max-batch-size": _PARALLEL,
    "-np": _PARALLEL,
    "--n-gpu-layers": "use --gpu-layers",
    "-ngl": "use --gpu-layers",
    "-t": "use --threads",
    "--tensor-parallel-size": _OPTIONS,
    "-tp": _OPTIONS,
    "--tp": _OPTIONS,
    "--tp-size": _OPTIONS,
    "--pipeline-parallel-size": _OPTIONS,
    "--data-parallel-size": _OPTIONS,
    "--gpu-memory-utilization": _OPTIONS,
    "--mem-fraction-static": _OPTIONS,
    "--kv-cache-free-gpu-memory-fraction": _OPTIONS,
    "--kv-cache-dtype": _OPTIONS,
    "--dtype": _OPTIONS,
    "--quantization": _OPTIONS,
    "--attn-implementation": _OPTIONS,
    "--enforce-eager": _OPTIONS,
    "--attention-backend": _OPTIONS,
    "--block-size": _OPTIONS,
    "--chunked-prefill-size": _OPTIONS,
    "--compilation-config": _OPTIONS,
    "--cpu-offload-gb": _OPTIONS,
    "--cuda-graph-max-bs": _OPTIONS,
    "--device": _OPTIONS,
    "--distributed-executor-backend": _OPTIONS,
    "--dp-size": _OPTIONS,
    "--enable-expert-parallel": _OPTIONS,
    "--ep-size": _OPTIONS,
    "--hf-overrides": _OPTIONS,
    "--kv-transfer-config": _OPTIONS,
    "--limit-mm-per-prompt": _OPTIONS,
    "--max-beam-width": _OPTIONS,
    "--max-logprobs": _OPTIONS,
    "--max-lora-rank": _OPTIONS,
    "--max-num-batched-tokens": _OPTIONS,
    "--max-num-tokens": _OPTIONS,
    "--mm-processor-kwargs": _OPTIONS,
    "--pp-size": _OPTIONS,
    "--rope-scaling": _OPTIONS,
    "--speculative-config": _OPTIONS,
    "--swap-space": _OPTIONS,
    "--async-scheduling": _OPTIONS,
    "--disable-radix-cache": _OPTIONS,
    "--dp": _OPTIONS,
    "--enable-torch-compile": _OPTIONS,
    "--logits-processors": _OPTIONS,
    "--schedule-policy": _OPTIONS,
    "--speculative-algorithm": _OPTIONS,
    "--tokenizer-mode": _OPTIONS,
    "--models-max": "use --model-memory-mb",
    "--extra-llm-api-options": "copy the options of the file to engine_options of [models.NAME]",
    "--model-draft": _DRAFT,
    "-md": _DRAFT,
    "--draft": "set draft_tokens in engine_options of [models.NAME]",
    "--draft-max": "set draft_tokens in engine_options of [models.NAME]",
    "--cache-ram": "use --prompt-cache-mb",
    "--slot-save-path": "use --keep-prefixes disk",
    "--enable-prefix-caching": _NOT_NEEDED,
    "--enable-prompt-tokens-details": _NOT_NEEDED,
    "--enable-cache-report": _NOT_NEEDED,
    "--enable-server-load-tracking": _NOT_NEEDED,
    "--enable-metrics": _NOT_NEEDED,
    "--enable-force-include-usage": _NOT_NEEDED,
    "--enable-per-request-metrics": f"{_REQUEST}: return_metrics",
    "--continuous-batching": _NOT_NEEDED,
    "--cont-batching": _NOT_NEEDED,
    "-cb": _NOT_NEEDED,
    "--enable-chunked-prefill": _NOT_NEEDED,
    # prompts and output
    "--chat-template": "use --template",
    "--chat-template-file": "use --template",
    "--tool-call-parser": f"{_DETECTED}; --tool-format overrides it, with the same names",
    "--tool-parser": f"{_DETECTED}; --tool-format overrides it, with the same names",
    "--reasoning-parser": f"{_DETECTED}; --reasoning-format overrides it, with the same names",
    "--enable-auto-tool-choice": _DETECTED,
    "--tool-parser-plugin": _PLUGIN,
    "--reasoning-parser-plugin": _PLUGIN,
    "--guided-decoding-backend": _NOT_NEEDED,
    "--structured-outputs-config": _NOT_NEEDED,
    "--grammar-backend": _NOT_NEEDED,
    "--chat-template-kwargs": _TEMPLATE_KWARGS,
    "--default-chat-template-kwargs": _TEMPLATE_KWARGS,
    "--return-tokens-as-token-ids": f"{_REQUEST}: return_tokens_as_token_ids",
    "--jinja": _NOT_NEEDED,
    "--temp": "use --temperature",
    "--generation-config": _SAMPLING,
    "--override-generation-config": _SAMPLING,
    "--grammar": f"{_REQUEST}: structured_outputs",
    "--n-predict": "use --max-output-tokens",
    "-n": "use --max-output-tokens",
    "--presence-penalty": _REQUEST,
    "--frequency-penalty": _REQUEST,
    "--seed": _REQUEST,
    "--random-seed": _REQUEST,
    "--default-seed": _REQUEST,
    "--repeat-penalty": "use --repetition-penalty",
    "--reasoning-budget": "set thinking_budgets in [models.NAME] of antiphon.toml",
    # the server
    "--api-key": _KEYS,
    "--api-key-file": _KEYS,
    "--admin-api-key": _KEYS,
    "--allowed-origins": "use --cors-origins",
    "--enable-cors": "use --cors-origins",
    "--uvicorn-log-level": "use --log-level",
    "--disable-log-requests": "use --log-level",
    "--log-disable": "use --log-level",
    "--verbose": "use --log-level",
    "-v": "use --log-level",
    "--enable-log-requests": _NOT_NEEDED,
    "--disable-log-stats": _NOTHING,
    "--log-verbosity": "use --log-level",
    "--log-file": "redirect the standard error, to which the server writes its log",
    "--otlp-traces-endpoint": "use --otlp-endpoint",
    "--ssl-certfile": _TLS,
    "--ssl-cert-file": _TLS,
    "--ssl-keyfile": _TLS,
    "--ssl-key-file": _TLS,
    "--tool-server": "set [mcp.servers.NAME] in antiphon.toml",
    "--no-webui": "use --ui off",
    "--webui": "use --ui on",
    "--api-prefix": _PREFIX,
    "--root-path": _PREFIX,
    "--allowed-headers": "use --cors-origins",
    "--allowed-methods": "use --cors-origins",
    "--api-server-count": "use --workers",
    "--sleep-idle-seconds": "use --idle-unload-s",
    "--model-timeout": "use --idle-unload-s",
    "--timeout": _NOTHING,  # of a socket; --timeout-s is the time of a response
}


def hint(words: Sequence[str]) -> str | None:
    """Find the first flag in ``words`` that belongs to another model server, such as vLLM. Return a
    line that says what to use instead, or None if there is no such flag. ``words``: the arguments
    of the command line."""
    for word in words:
        flag = word.partition("=")[0]
        if (advice := FOREIGN_FLAGS.get(flag.replace("_", "-"))) is not None:
            return f"unknown argument {flag}: {_with_commands(advice)}"
    return None


def _with_commands(text: str) -> str:
    """Replace each command in braces by the shell command that works in this installation. Example:
    ``{serve MODEL}`` becomes ``antiphon serve MODEL``."""
    return re.sub(r"\{([^{}]+)\}", lambda match: antiphon_command(match[1]), text)
