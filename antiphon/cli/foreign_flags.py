"""Command-line flags of other model servers such as vLLM, and the hint that Antiphon prints for
each of these flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from antiphon.support.installation import antiphon_command

__all__ = ["FOREIGN_FLAGS", "hint"]

_SOURCE = "name the model without a flag: {serve MODEL}"
_CONTEXT = "use --context-size"
_PARALLEL = "use --parallel"
_NAME = "write NAME=SOURCE, or add a name with --aliases"
_KEYS = "make a key with `{key new}` and add it to antiphon.toml"
_ADAPTERS = "set adapters in [models.NAME] of antiphon.toml"
_OPTIONS = "set it in engine_options of [models.NAME] in antiphon.toml"
_NOT_NEEDED = "it is not needed here: this is always on"
_DETECTED = "it is not needed here: the format is detected"

#: Flag of another server → what to do instead. Braces contain the arguments of an ``antiphon``
#: command. The flags are those of vLLM, SGLang, TensorRT-LLM (trtllm-serve), llama-server,
#: transformers serve and the gpt-oss server.
FOREIGN_FLAGS: Mapping[str, str] = {
    # the model
    "--model": _SOURCE,
    "--model-path": _SOURCE,
    "--checkpoint": _SOURCE,
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
    "--trust-remote-code": (
        "code of models runs only with trust_remote_code = true in engine_options of [models.NAME]"
        " in antiphon.toml"
    ),
    "--lora-modules": _ADAPTERS,
    "--enable-lora": _ADAPTERS,
    "--lora": _ADAPTERS,
    "--mmproj": "use --projector",
    # size and hardware
    "--max-model-len": _CONTEXT,
    "--context-length": _CONTEXT,
    "--max_seq_len": _CONTEXT,
    "--ctx-size": _CONTEXT,
    "-c": _CONTEXT,
    "--max-num-seqs": _PARALLEL,
    "--max-running-requests": _PARALLEL,
    "--max_batch_size": _PARALLEL,
    "-np": _PARALLEL,
    "--n-gpu-layers": "use --gpu-layers",
    "-ngl": "use --gpu-layers",
    "-t": "use --threads",
    "--tensor-parallel-size": _OPTIONS,
    "-tp": _OPTIONS,
    "--tp": _OPTIONS,
    "--tp-size": _OPTIONS,
    "--tp_size": _OPTIONS,
    "--pipeline-parallel-size": _OPTIONS,
    "--data-parallel-size": _OPTIONS,
    "--gpu-memory-utilization": _OPTIONS,
    "--mem-fraction-static": _OPTIONS,
    "--kv_cache_free_gpu_memory_fraction": _OPTIONS,
    "--kv-cache-dtype": _OPTIONS,
    "--dtype": _OPTIONS,
    "--quantization": _OPTIONS,
    "--attn-implementation": _OPTIONS,
    "--enforce-eager": _OPTIONS,
    "--enable-prefix-caching": _NOT_NEEDED,
    "--continuous-batching": _NOT_NEEDED,
    "--enable-chunked-prefill": _NOT_NEEDED,
    # prompts and output
    "--chat-template": "use --template",
    "--chat-template-file": "use --template",
    "--tool-call-parser": f"{_DETECTED}; --tool-format overrides it, with the same names",
    "--tool_parser": f"{_DETECTED}; --tool-format overrides it, with the same names",
    "--reasoning-parser": f"{_DETECTED}; --reasoning-format overrides it, with the same names",
    "--reasoning_parser": f"{_DETECTED}; --reasoning-format overrides it, with the same names",
    "--enable-auto-tool-choice": _DETECTED,
    "--jinja": _NOT_NEEDED,
    "--temp": "use --temperature",
    "--repeat-penalty": "use --repetition-penalty",
    "--reasoning-budget": "set thinking_budgets in [models.NAME] of antiphon.toml",
    # the server
    "--api-key": _KEYS,
    "--api-key-file": _KEYS,
    "--allowed-origins": "use --cors-origins",
    "--enable-cors": "use --cors-origins",
    "--uvicorn-log-level": "use --log-level",
    "--log-verbosity": "use --log-level",
    "--ssl-certfile": "put a proxy that terminates TLS in front of the server",
    "--ssl-cert-file": "put a proxy that terminates TLS in front of the server",
    "--tool-server": "set [mcp.servers.NAME] in antiphon.toml",
    "--no-webui": "use --ui off",
    "--sleep-idle-seconds": "use --idle-unload-s",
    "--model-timeout": "use --idle-unload-s",
}


def hint(words: Sequence[str]) -> str | None:
    """Find the first flag in ``words`` that belongs to another model server, such as vLLM. Return a
    line that says what to use instead, or None if there is no such flag. ``words``: the arguments
    of the command line."""
    for word in words:
        flag = word.partition("=")[0]
        if flag in FOREIGN_FLAGS:
            return f"unknown argument {flag}: {_with_commands(FOREIGN_FLAGS[flag])}"
    return None


def _with_commands(text: str) -> str:
    """Replace each command in braces by the shell command that works in this installation. Example:
    ``{serve MODEL}`` becomes ``antiphon serve MODEL``."""
    return re.sub(r"\{([^{}]+)\}", lambda match: antiphon_command(match[1]), text)
