"""Choose the engine of a local model for ``engine = "auto"``: OpenVINO or llama.cpp. A local model
is a model whose files are on this machine.

The choice is made once for each model, not for each request. If requests went to both engines, both
would load the weights, and the prefix cache of one engine would not help the other engine.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from antiphon.config.model import Model
from antiphon.engines.gguf.reader import read_gguf

from .download import DEFAULT

#: Least number of concurrent requests (setting ``parallel``) for OpenVINO. Compared to llama.cpp,
#: OpenVINO needs more time for one request and less time for many. From this number on, it is
#: better in time to first token, tokens per second and CPU time (figures: docs/engines.md).
MIN_PARALLEL = 8
_OPENVINO = "openvino_genai"


def is_openvino_folder(source: Path) -> bool:
    """Return whether the folder contains a model in OpenVINO's format."""
    return (source / "openvino_model.xml").is_file()


def engine_of_file(
    path: Path, model: Model, projector: Path | None = None, *, divides_cache: bool = False
) -> str:
    """Return ``openvino`` or ``llama``, the engine that runs this file. ``path``: a GGUF file, or a
    folder in OpenVINO's format, which always runs on OpenVINO. ``divides_cache``: whether tenants
    must not share cached prefixes.

    A GGUF file runs on OpenVINO if all of these conditions are true. Otherwise it runs on
    llama.cpp.

    - OpenVINO is installed and supports the architecture of the model.
    - No setting of the model needs llama.cpp, and the model has no image encoder (``projector``).
    - The setting ``parallel`` is at least ``MIN_PARALLEL``.
    - Tenants may share cached prefixes, because OpenVINO cannot divide its cache.

    Raises ``SetupError`` if the file cannot be read.
    """
    from antiphon.engines.llama.options import ENGINE_OPTIONS
    from antiphon.engines.openvino.engine import ARCHITECTURES

    if is_openvino_folder(path):
        return "openvino"
    needs_llama = (
        model.adapters
        or divides_cache
        or projector is not None
        or model.source == DEFAULT  # its samplers exist only in llama.cpp
        or any(name in ENGINE_OPTIONS for name in model.engine_options)
    )
    if needs_llama or model.parallel < MIN_PARALLEL or importlib.util.find_spec(_OPENVINO) is None:
        return "llama"
    return "openvino" if read_gguf(path).architecture in ARCHITECTURES else "llama"
