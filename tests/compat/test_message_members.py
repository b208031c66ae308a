"""Each member that the types of Anthropic's client allow in a request of the Messages API is
honoured, refused by name, or a hint that cannot change the answer."""

from __future__ import annotations

from antiphon.compat.messages.bodies import CountTokensFields, MessagesFields
from antiphon.compat.messages.request import MESSAGE_FIELDS
from tests.wire.test_sdk_members import Walk

_HEADER = "a header of the client"
_FALLBACK = "blocks of fallbacks are not shown to the model"
_REFUSED = "its block or tool is refused by its type, or the member by its name"
#: Members that our types do not declare.
LEFT_OUT = {
    **dict.fromkeys(("betas", "user_profile_id", "workspace_id"), _HEADER),
    **dict.fromkeys(("billing_policy", "fallback_credit_token"), _REFUSED),
    **dict.fromkeys(("MessageBlock.from", "MessageBlock.to", "MessageBlock.trigger"), _FALLBACK),
    **dict.fromkeys(("MessageBlock.transformations", "MessageTool.caching"), _REFUSED),
    **dict.fromkeys(("MessageTool.max_tokens", "MessageTool.model"), _REFUSED),
    **dict.fromkeys(("MessageTool.url_sources", "MessageTool.use_cache"), _REFUSED),
    "MessageBlock.caller": "other callers than the model are refused where tools are declared",
    "MessageBlock.mcp_server_name": "the server lists the tools of MCP servers again",
    "MessageBlock.tools": "the server lists the tools of MCP servers again",
    "MessageTool.tools": "the server lists the tools of MCP servers again",
    "MessageTool.display_number": "it concerns only the client",
    "MessageTool.response_inclusion": "it concerns only calls of programs, which are refused",
    "MessageOutputConfig.task_budget": "a hint: the model is not told",
    "MessageThinking.block_binding": "thinking is bound to this server, not to a prompt",
}


def test_each_member_of_a_request_is_read_or_listed() -> None:
    from anthropic.types.beta import message_count_tokens_params, message_create_params

    walk = Walk()
    walk.compare(message_create_params.MessageCreateParamsBase, MessagesFields, "")
    walk.compare(message_count_tokens_params.MessageCountTokensParams, CountTokensFields, "")
    bodies = ("MessagesFields.", "CountTokensFields.")
    missing = {each.partition(".")[2] if each.startswith(bodies) else each for each in walk.missing}
    assert missing == set(LEFT_OUT)
    assert len(walk.seen) > 60
    refused = {name for name, how in MESSAGE_FIELDS.items() if how == "refused"}
    assert refused == {
        name for name, why in LEFT_OUT.items() if why is _REFUSED and "." not in name
    }
