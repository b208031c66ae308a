"""Operations on token ids."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.inference.tokens import common_prefix_length

IDS = st.lists(st.integers(0, 2), max_size=20)


def ids_array(ids: Sequence[int]) -> array[int]:
    return array("I", ids)


@pytest.mark.parametrize("convert", [list, tuple, ids_array])
@given(one=IDS, other=IDS)
def test_common_prefix_length_is_the_longest_common_prefix(
    convert: Callable[[Sequence[int]], Sequence[int]], one: list[int], other: list[int]
) -> None:
    length = common_prefix_length(one, convert(other))
    assert one[:length] == other[:length]
    assert length in (len(one), len(other)) or one[length] != other[length]
