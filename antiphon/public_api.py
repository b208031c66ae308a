"""The modules that programs and plug-ins may import.

The rule: a module that ``PUBLIC`` does not list is internal, whatever its name is, and may change
in any version. The same holds for names of a public module that are not in its ``__all__``. An
internal module offers its names without an underscore. It has ``__all__`` only if it also offers
names of a package that its users do not import. Tests compare the table with ``__all__`` and with
the imports in the documentation and the examples.
"""

from __future__ import annotations

from typing import NamedTuple


class PublicModules(NamedTuple):
    """Public modules with one purpose. A name that ends with ``.*`` stands for all modules of a
    package that are not in a subfolder."""

    purpose: str
    modules: tuple[str, ...]


PUBLIC: tuple[PublicModules, ...] = (
    PublicModules("embed a server", ("antiphon", "antiphon.ray")),
    PublicModules(
        "contracts of plug-ins",
        (
            "antiphon.backends.base",
            "antiphon.blobs.base",
            "antiphon.dialects.base",
            "antiphon.embeddings.base",
            "antiphon.engines.base",
            "antiphon.sandbox.base",
            "antiphon.tools.base",
            "antiphon.tools.image_generation.base",
        ),
    ),
    PublicModules(
        "the contract of stores, and its records",
        (
            "antiphon.store.audit",
            "antiphon.store.base",
            "antiphon.store.containers",
            "antiphon.store.files",
            "antiphon.store.journal",
            "antiphon.store.keys",
            "antiphon.store.rates",
            "antiphon.store.records",
            "antiphon.store.runs",
            "antiphon.store.skills",
            "antiphon.store.usage",
            "antiphon.store.values",
            "antiphon.store.vectors",
        ),
    ),
    PublicModules(
        "values that the contracts exchange",
        (
            "antiphon.errors",
            "antiphon.inference.conversation",
            "antiphon.inference.sampling",
            "antiphon.inference.tokens",
            "antiphon.stream.deltas",
            "antiphon.wire.*",
            "antiphon.wire.resources.*",
        ),
    ),
    PublicModules(
        "helpers for plug-ins",
        (
            "antiphon.backends.local.backend",
            "antiphon.dialects.chat.dialect",
            "antiphon.dialects.format_check",
            "antiphon.dialects.formats.registry",
            "antiphon.engines.common.request_checks",
            "antiphon.engines.common.stop_conditions",
            "antiphon.engines.common.stop_strings",
            "antiphon.store.common.subscriptions",
            "antiphon.support.push",
        ),
    ),
    PublicModules(
        "checks and fakes for tests of plug-ins",
        ("antiphon.testing.*", "antiphon.testing.memory_store.store"),
    ),
)
