"""Validate a request as a whole: fields that exclude or require each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_shapes import derive
from antiphon.wire.tools import Mcp, Tool

from .errors import empty_value, mutually_exclusive
from .tools import check_tool_choice


def check_request(request: CreateResponse) -> None:
    """Validate the combination of fields. Raises ``InvalidRequest``."""
    _check_context(request)
    _check_compaction_trigger(request.input or ())
    if request.prompt is None:  # a stored prompt may declare the chosen tool
        check_tools(request)
    _check_background_options(request)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )


def _check_background_options(request: CreateResponse) -> None:
    """Check the conditions for ``background_options``. Raises ``InvalidRequest``."""
    options = request.background_options
    if options is None:
        return
    path = "background_options"
    if not request.background:
        raise InvalidRequest(
            f"The '{path}' parameter is only allowed when 'background' is enabled.", param=path
        )
    if options.completion_window == "soonest":
        return
    path = f"{path}.completion_window"
    window = f"A '{path}' of '{options.completion_window}'"
    if request.stream:
        raise InvalidRequest(f"{window} cannot be combined with 'stream'.", param=path)
    if request.service_tier not in (None, "auto", "default"):
        raise InvalidRequest(
            f"{window} needs the default 'service_tier'.", param=path, code="invalid_value"
        )


def check_tools(request: CreateResponse) -> None:
    """Check that ``tool_choice`` names declared tools and that labels of MCP servers are unique.
    Raises ``InvalidRequest``.
    """
    derive(request, _check_labels)
    if request.tool_choice is not None:
        check_tool_choice(request.tool_choice, _all_tools(request.tools, request.input or ()))


def _check_labels(request: CreateResponse) -> None:
    labels: set[str] = set()
    for index, tool in enumerate(request.tools):
        if isinstance(tool, Mcp):
            if tool.server_label in labels:
                raise InvalidRequest(
                    f"Duplicate server_label found: '{tool.server_label}'.",
                    param=f"tools[{index}].server_label",
                    code="invalid_value",
                )
            labels.add(tool.server_label)


def _check_context(request: CreateResponse) -> None:
    is_empty = request.input == () and not request.has_context and not request.instructions
    if is_empty and not request.only_prewarms:
        raise empty_value("input", ())
    if request.previous_response_id is not None and request.conversation is not None:
        raise mutually_exclusive("previous_response_id", "conversation")


def _check_compaction_trigger(items: tuple[it.Item, ...]) -> None:
    for index, item in enumerate(items[:-1]):
        if isinstance(item, it.CompactionTrigger):
            raise InvalidRequest(
                "A 'compaction_trigger' must be the last item of the input.",
                param=f"input[{index}]",
                code="invalid_value",
            )


def _all_tools(tools: tuple[Tool, ...], items: Iterable[it.Item]) -> Iterator[Tool]:
    """Yield the tools of the request, and the tools that its input items add."""
    yield from tools
    for item in items:
        yield from item.added_tools
