"""The shares of options. A table says which tokens the model writes next, and how likely they
are."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from antiphon.compat.option_shares import OptionShares

Tokens = Mapping[str, Mapping[str, float]]


def ask(texts: list[str], tokens: Tokens) -> tuple[list[float], list[str]]:
    """Return the shares, and the beginnings that the model had to continue."""
    options, asked = OptionShares(texts), []
    while (beginning := options.beginning) is not None:
        asked.append(beginning)
        options.feed(tokens[beginning])
    return options.shares, asked


@pytest.mark.parametrize(
    ("texts", "tokens", "shares"),
    [
        (["Yes", "No"], {"": {"Yes": 0.3, " yes": 0.3, "No": 0.2, "Maybe": 0.2}}, [0.75, 0.25]),
        (["yes", "no"], {"": {"y": 0.3, "yes": 0.1, "no.": 0.4, "nobody": 0.2}}, [0.5, 0.5]),
        (["Yes", "yes"], {"": {"Yes": 0.3, "yes": 0.1}}, [0.75, 0.25]),
        (
            ["shipping", "shipment", "sale"],
            {"": {"ship": 0.6, "sal": 0.2}, "ship": {"ping": 0.3, "ment": 0.1}},
            [0.75 * 0.75, 0.25 * 0.75, 0.25],
        ),
        (
            ["high", "high priority"],
            {"": {"high": 0.5}, "high": {" prior": 0.3, "<|im_end|>": 0.2, ".": 0.1, "er": 0.4}},
            [0.5, 0.5],
        ),
        (["high", "high priority"], {"": {"high": 0.5}, "high": {}}, [1.0, 0.0]),
        (
            ["the red team", "the blue team"],
            {"the": {" red": 0.1, " blue": 0.3}},
            [0.25, 0.75],
        ),
        (["a", "b"], {"": {"c": 1.0}}, [0.0, 0.0]),
        (["ab", "ac"], {"": {"a": 1.0}, "a": {"x": 1.0}}, [0.5, 0.5]),
    ],
)
def test_probabilities_are_divided_where_the_texts_differ(
    texts: list[str], tokens: Tokens, shares: list[float]
) -> None:
    found, asked = ask(texts, tokens)
    assert found == pytest.approx(shares)
    assert asked == list(tokens)


def test_unlikely_options_are_not_told_apart() -> None:
    found, asked = ask(["xa", "xb", "y"], {"": {"x": 0.0001, "y": 0.9999}})
    assert found == pytest.approx([0.00005, 0.00005, 0.9999])
    assert asked == [""]


def test_long_common_beginning_costs_one_call() -> None:
    head = "a" * 4000
    found, asked = ask([f"{head}x", f"{head}y"], {head: {"x": 0.5, "y": 0.5}})
    assert found == [0.5, 0.5] and asked == [head]
