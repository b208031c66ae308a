"""Names of attributes and metrics are those of OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import ast
from types import ModuleType

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from tests.sources import MODULES, nodes

PREFIX = "gen_ai."


def constants(module: ModuleType) -> set[str]:
    values = vars(module).values()
    return {value for value in values if isinstance(value, str) and value.startswith(PREFIX)}


def test_names_are_constants_of_the_conventions() -> None:
    used = {
        node.value
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(PREFIX)
    }
    assert "gen_ai.tool.name" in used
    assert used - constants(gen_ai_attributes) - constants(gen_ai_metrics) == set()
