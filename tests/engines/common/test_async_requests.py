"""What engines that are asynchronous themselves tell of a token."""

from __future__ import annotations

import math

from antiphon.engines.common.async_requests import token_logprob
from tests.engines.fake_vllm import Logprob


def test_log_probabilities_are_numbers_that_json_has() -> None:
    known = {1: Logprob(-math.inf), 2: Logprob(-0.5), 3: Logprob(math.nan)}
    logprob = token_logprob(1, known, 3)
    assert logprob.logprob == -9999.0
    assert {each.id: each.logprob for each in logprob.top} == {2: -0.5, 1: -9999.0, 3: -9999.0}
    assert token_logprob(3, known, 0).logprob == -9999.0
