"""SGLang's server without its kernels, which for the CPU are built from source only. What is not
quantised is computed by PyTorch, so that they need no more than be there by name; all the rest is
SGLang as it is installed. Its processes run this file first, too.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType


def _named(name: str) -> None:
    """What is imported from a kernel's module: there, and not to be called."""


def _kernels() -> ModuleType:
    module = module_from_spec(ModuleSpec("sgl_kernel", None))
    module.__getattr__ = _named  # type: ignore[method-assign]
    return module


sys.modules["sgl_kernel"] = _kernels()

if __name__ == "__main__":
    os.environ |= {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",  # not those at the temperature
        "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than the tests
    }
    runpy.run_module("sglang.launch_server", run_name="__main__")
