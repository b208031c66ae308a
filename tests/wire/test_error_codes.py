"""The table of error codes: every code of the package, with the status that clients get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import get_args

from openai.types.responses import ResponseError as SdkError

from antiphon import errors
from antiphon.config.options import options, setting_tables
from antiphon.config.settings import Settings
from antiphon.runs.request import attachments
from antiphon.wire.error_codes import ERROR_CODES, response_code
from antiphon.wire.parsing import errors as parsing
from tests.sources import modules_with, nodes
from tests.wire.samples import SENT_TO_CODEX


def calls() -> Iterator[ast.Call]:
    """Yield the calls in the modules that name a code."""
    for path in modules_with("code="):
        if "testing" in path.parts:
            continue
        for node in nodes(path):
            if isinstance(node, ast.Call):
                yield node


def literals(call: ast.Call) -> Iterator[str]:
    """Yield the codes that a call names: ``code="…"``."""
    for keyword in call.keywords:
        if keyword.arg == "code":
            for node in ast.walk(keyword.value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


#: Codes of parsers, whose names are put together.
PARSED = {
    parsing.out_of_range("a", kind, 1, sign, "2").code
    for kind in ("integer", "decimal")
    for sign in (">=", "<=")
} | {
    parsing.too_long_error("a", 2, 1).code,
    parsing.too_many("a", 2, 1).code,
    parsing.too_many_properties("a", 2, 1).code,
    parsing.empty_value("a", "").code,
    parsing.empty_value("a", ()).code,
}
#: Codes that belong to a program's own protocol, not to clients.
NOT_FOR_CLIENTS = {"", "unknown"}
#: Codes in the list of errors of a batch. They are OpenAI's, and no HTTP response has them.
OF_BATCHES = {"duplicate_custom_id", "invalid_json_line", "invalid_request", "too_many_tasks"}
#: Codes that only events of a WebSocket have.
OF_STEERING = {"invalid_input", "response_not_active", "successor_creation_failed"}
#: Codes of upstreams that arrive only in their answers.
FROM_UPSTREAMS = {
    "image_too_small",
    "invalid_image_mode",
    "unsupported_image_media_type",
}


def test_table_has_every_code_and_no_other() -> None:
    named = {code for call in calls() for code in literals(call)}
    named |= {code for pair in attachments.ERROR_CODES.values() for code in pair}
    named |= {*attachments.DOWNLOAD_CODES, errors.CONTEXT_LENGTH_EXCEEDED}
    named |= {str(code) for code in PARSED} | {"insufficient_quota", "rate_limit_exceeded"}
    named |= {"http_error"} | OF_STEERING | FROM_UPSTREAMS
    assert named - NOT_FOR_CLIENTS - OF_BATCHES == set(ERROR_CODES)


def test_statuses_are_those_of_the_errors() -> None:
    wrong = set()
    for call in calls():
        cls = getattr(errors, name_of(call), None)
        if not (isinstance(cls, type) and issubclass(cls, errors.RequestError)):
            continue
        given = [each.value for each in call.keywords if each.arg == "status"]
        status = ast.literal_eval(given[0]) if given else cls.status
        wrong |= {
            (code, status)
            for code in set(literals(call)) - NOT_FOR_CLIENTS
            if status not in (ERROR_CODES[code].status, *ERROR_CODES[code].other_statuses)
        }
    assert wrong == set()


def test_settings_in_advice_exist() -> None:
    for row in ERROR_CODES.values():
        _, _, advice = row.action.partition("Operator: ")
        for name in re.findall(r"`([\w.]+)`", advice):
            assert name in {*options(Settings), *setting_tables(Settings)}, name


def test_rows_are_sentences_and_sorted() -> None:
    assert list(ERROR_CODES) == sorted(ERROR_CODES)
    for row in ERROR_CODES.values():
        assert row.meaning.endswith(".") and row.action.endswith(".")


def test_failed_responses_have_codes_that_the_client_knows() -> None:
    known = set(get_args(SdkError.model_fields["code"].annotation)) | SENT_TO_CODEX
    assert {response_code(code) for code in (*ERROR_CODES, "invented")} <= known
    assert all(response_code(code) == code for code in known)
    assert response_code("invalid_grammar") == "invalid_prompt"
    assert response_code("model_not_loaded") == "server_error"
