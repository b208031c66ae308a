"""What the kinds of upstream servers, such as vLLM, have in common in each of their APIs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from antiphon.backends.remote.context_limit import TokenEndpoint
from antiphon.wire.extensions import Guide
from antiphon.wire.json_types import JsonObject


class ServerFlavour(Struct, frozen=True, kw_only=True):
    """One kind of upstream server, such as vLLM: the request fields and features that it supports.

    Antiphon recognizes a server of this kind by its host name or by its list of models: ``hosts``
    contains the host name, or ``owners`` contains the field ``owned_by`` of the first model in the
    list.
    """

    #: Option → field of the body, for options beyond the standard.
    option_fields: Mapping[str, str] = {}
    #: The server enforces the format of the answer that a JSON schema describes.
    enforces_format: bool = False
    #: The server enforces ``tool_choice`` and the strict schemas of tools.
    enforces_calls: bool = False
    #: Syntax of a grammar → the path of the grammar's field in the body.
    grammar_fields: Mapping[str, tuple[str, ...]] = {}
    #: Image formats that the server cannot read, as MIME types.
    unreadable_formats: frozenset[str] = frozenset()
    #: The model hears recordings. Only the settings can say that it does not.
    hears: bool = True
    #: The server accepts ``chat_template_kwargs``.
    accepts_template_kwargs: bool = False
    #: The kind of the server's endpoint that counts tokens.
    token_endpoint: TokenEndpoint | None = None
    owners: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def accepts_guide(self, guide: Guide | None) -> bool:
        """Return whether the server enforces this grammar. Returns False if there is none."""
        return guide is not None and guide.syntax in self.grammar_fields

    def guide_fields(self, guide: Guide) -> JsonObject:
        """Return the field of the body that contains a grammar, which the server accepts."""
        *outer, field = self.grammar_fields[guide.syntax]
        fields: JsonObject = {field: guide.definition}
        return {outer[0]: fields} if outer else fields


#: ``grammar_fields`` of vLLM.
VLLM_GRAMMARS: Mapping[str, tuple[str, ...]] = {
    "regex": ("structured_outputs", "regex"),
    "lark": ("structured_outputs", "grammar"),
    "ebnf": ("structured_outputs", "grammar"),
    "structural_tag": ("structured_outputs", "structural_tag"),
}
