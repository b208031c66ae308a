"""What tools used is summed up, family by family."""

from __future__ import annotations

from antiphon.runs.execution.tool_usage import summed


def test_numbers_add_up_and_the_others_are_zero() -> None:
    details = {"image_tokens": 3, "text_tokens": 4}
    image = {"input_tokens": 7, "input_tokens_details": details, "output_tokens": 2}
    used = summed({}, {"image_gen": {**image, "total_tokens": 9}})
    assert used["web_search"] == {"num_requests": 0}
    used = summed(used, {"image_gen": {**image, "total_tokens": 9, "cached_tokens": 1}})
    used = summed(used, {"web_search": {"num_requests": 1}, "image_gen": {"model": "x"}})
    assert used == {
        "image_gen": {
            "input_tokens": 14,
            "input_tokens_details": {"image_tokens": 6, "text_tokens": 8},
            "output_tokens": 4,
            "total_tokens": 18,
            "cached_tokens": 1,
        },
        "web_search": {"num_requests": 1},
    }
