"""What the pages for those who come from other servers say of requests."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.docs import ROOT
from tests.conformance.conftest import Serve
from tests.conformance.server import Ask

_PART: dict[str, Any] = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
_NESTED = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_SMELL = [{"role": "user", "content": [{"type": "input_smell"}]}]


@pytest.mark.requirement("VN-13")
@pytest.mark.parametrize(
    ("page", "statement", "request_fields", "param", "code"),
    [
        (
            "from-gpt-oss-server",
            "A request with an unknown `previous_response_id` gets HTTP 400",
            {"previous_response_id": "resp_none"},
            "previous_response_id",
            "previous_response_not_found",
        ),
        (
            "from-gpt-oss-server",
            "gets HTTP 400 with the path of the field",
            {"text": {"format": {"type": "poem"}}},
            "text.format.type",
            "invalid_value",
        ),
        (
            "from-transformers-serve",
            "of Chat Completions, with a nested object `function`, is rejected",
            {"tools": [_NESTED]},
            "tools[0].name",
            "missing_required_parameter",
        ),
        (
            "from-transformers-serve",
            "`image_url` belong to Chat Completions, and `/v1/responses` rejects them",
            {"input": [{"role": "user", "content": [_PART]}]},
            "input[0].content[0].type",
            "invalid_value",
        ),
        (
            "from-transformers-serve",
            "It may contain only options for which Antiphon has",
            {"generation_config": {"num_beams": 4}},
            "generation_config.num_beams",
            "unsupported_parameter",
        ),
        (
            "from-trtllm-serve",
            "Antiphon rejects a request with a part of an unknown type, and the error names the",
            {"input": _SMELL},
            "input[0].content[0].type",
            "invalid_value",
        ),
        (
            "from-vllm",
            "returns HTTP 400 with the code `previous_response_not_found`",
            {"previous_response_id": "resp_none"},
            "previous_response_id",
            "previous_response_not_found",
        ),
        (
            "from-vllm",
            "fields (`guided_json`, `guided_regex` …) are refused",
            {"guided_regex": "a+"},
            "guided_regex",
            "unsupported_parameter",
        ),
    ],
)
async def test_refused_requests(
    serve: Serve,
    ask_foreground: Ask,
    page: str,
    statement: str,
    request_fields: dict[str, Any],
    param: str,
    code: str,
) -> None:
    assert statement in (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    rejection = (await ask_foreground(serve(), **request_fields)).rejection
    assert (rejection["http"], rejection["param"], rejection["code"]) == (400, param, code)
