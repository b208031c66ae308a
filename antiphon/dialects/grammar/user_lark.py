"""Rewrite a user's Lark grammar so that its rules can be part of the grammar of a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from .user_regex import Escapes, RegexRewriter, UnwritableGrammar, class_member, regex_rule

#: The terminals that a Lark grammar can import from ``common``, as regexes.
_COMMON: Mapping[str, str] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "SIGNED_FLOAT": r"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": "[ \t]+",
    "WS": "[ \t\f\r\n]+",
    "CR": "\r",
    "LF": "\n",
    "NEWLINE": "(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
}

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*")(?P<any_case>i?)
    |(?P<regex>/(?:\\.|[^/\\\n])+/)(?P<flags>[imslux]*)
    |(?P<directive>%[a-z]+[^\n]*)
    |(?P<alias>->\s*\w+)
    |(?P<times>~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<range>\.\.)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<other>[^\S\n]+|\n|[:|()\[\]*+?!.,\d]+)
    |(?P<unknown>"(?:\\.|[^"\\\n])*|/(?:\\.|[^/\\\n])*|.)""",
    re.VERBOSE,
)
_HEAD = re.compile(r"^[ \t]*[?!]*(?P<name>[A-Za-z_]\w*)(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_IMPORT = re.compile(r"%import\s+common\.(\w+)(?:\s*->\s*(\w+))?\s*$")
_IMPORTS = re.compile(r"%import\s+common\s*\(([^)]*)\)\s*$")


def lark_rules(definition: str, prefix: str, escapes: Escapes) -> tuple[str, str]:
    """Return the rewritten rules of a user's Lark grammar, and the name of its start rule.

    The names of all rules start with ``prefix``. ``escapes``: character → how it is escaped in the
    reply. Raises ``UnwritableGrammar`` if the grammar cannot be rewritten.
    """
    return _LarkRewriter(prefix, escapes).rules(definition)


class _LarkRewriter:
    """Rewrites one Lark grammar. The grammar may ignore some text, such as white space (``%ignore
    WS``). The rewritten rules then accept the ignored text after each terminal."""

    def __init__(self, prefix: str, escapes: Escapes) -> None:
        self._prefix = prefix
        self._escapes = escapes
        self._regex = RegexRewriter(escapes)
        self._ignored: list[str] = []
        self._imported: dict[str, str] = {}

    def rules(self, definition: str) -> tuple[str, str]:
        """Return the rewritten rules and the name of the start rule."""
        text = self._directives(definition)
        heads = list(_HEAD.finditer(text))
        if text[: heads[0].start() if heads else None].strip():
            raise UnwritableGrammar("a grammar is made of rules: 'name: …'")
        if not any(head["name"] == "start" for head in heads):
            raise UnwritableGrammar("the grammar has no rule 'start'")
        out = []
        for head, after in zip(heads, [*heads[1:], None], strict=True):
            body = text[head.end() : after.start() if after else None]
            name = head["name"]
            out.append(f"{self._name(name)}: {self._body(body, _is_terminal(name))}")
        out += [
            f"{self._name(n)}: {regex_rule(p, self._escapes)}" for n, p in self._imported.items()
        ]
        start = self._name("start")
        if not self._ignored:
            return "\n".join(out), start
        skipped = " | ".join(self._body(each, True) for each in self._ignored)
        out += [f"{self._prefix}_skip: ({skipped})*", f"{self._prefix}_all: {self._skip} {start}"]
        return "\n".join(out), f"{self._prefix}_all"

    @property
    def _skip(self) -> str:
        return f"{self._prefix}_skip"

    def _directives(self, definition: str) -> str:
        """Process the grammar's directives, such as ``%import``. Returns the grammar without
        directives, comments and aliases."""
        pieces: list[str] = []
        for token in _TOKEN.finditer(definition):
            if token["directive"] is not None:
                self._directive(token["directive"].partition("//")[0].strip())
            elif token["comment"] is None and token["alias"] is None:
                pieces.append(token.group())
        return "".join(pieces)

    def _directive(self, directive: str) -> None:
        if directive.startswith("%ignore"):
            self._ignored.append(directive.removeprefix("%ignore").strip())
            return
        one, several = _IMPORT.match(directive), _IMPORTS.match(directive)
        if one is not None:
            self._import(one[1], one[2] or one[1])
        elif several is not None:
            for name in several[1].split(","):
                self._import(name.strip(), name.strip())
        else:
            raise UnwritableGrammar(f"'{directive}' cannot be enforced")

    def _import(self, name: str, alias: str) -> None:
        if name not in _COMMON:
            raise UnwritableGrammar(f"there is no terminal 'common.{name}'")
        self._imported[alias] = _COMMON[name]

    def _body(self, body: str, terminal: bool) -> str:
        """Rewrite the body of a rule or of a terminal. ``terminal``: whether the body belongs to a
        terminal.

        The user's grammar may ignore some text, such as white space (``%ignore WS``). The rewritten
        body of a rule then accepts the ignored text after each terminal.
        """
        weave = "" if terminal or not self._ignored else f" {self._skip}"
        out: list[str] = []
        tokens = list(_TOKEN.finditer(body.strip()))
        at = 0
        while at < len(tokens):
            token = tokens[at]
            following = [n for n in range(at + 1, min(at + 5, len(tokens))) if tokens[n][0].strip()]
            if token["string"] is not None and following and tokens[following[0]]["range"]:
                if len(following) == 1:
                    raise UnwritableGrammar("'..' must stand between two strings")
                last = tokens[following[1]]["string"]
                out.append(f"({self._range(token['string'], last)}{weave})")
                at = following[1] + 1
                continue
            out.append(self._said(token, weave))
            at += 1
        return "".join(out)

    def _said(self, token: re.Match[str], weave: str) -> str:
        """Rewrite one token of a rule's body. ``weave``: the text to add after a terminal. It is a
        space and the name of the rule for ignored text, or ``""`` if the grammar ignores no
        text."""
        if token["string"] is not None:
            return f"({self._string(token['string'], bool(token['any_case']))}{weave})"
        if token["regex"] is not None:
            pattern = token["regex"][1:-1].replace("\\/", "/")
            return f"({regex_rule(pattern, self._escapes, token['flags'])}{weave})"
        if token["name"] is not None:
            name = self._name(token["name"])
            return f"({name}{weave})" if weave and _is_terminal(token["name"]) else name
        if token["unknown"] is not None or token["range"] is not None:
            raise UnwritableGrammar(f"'{token.group()}' cannot be enforced")
        return token.group().replace("!", "")

    def _string(self, quoted: str, any_case: bool) -> str:
        text = _unquoted(quoted)
        if not any_case:
            return self._regex.literal(text)
        return regex_rule(re.escape(text), self._escapes, "i")

    def _range(self, low: str, high: str | None) -> str:
        if high is None:
            raise UnwritableGrammar("'..' must stand between two strings")
        first, last = _unquoted(low), _unquoted(high)
        if len(first) != 1 or len(last) != 1:
            raise UnwritableGrammar("'..' must stand between two strings of one character")
        if first > last:
            raise UnwritableGrammar(f"the range {low}..{high} is empty")
        return self._regex.chars(
            f"{class_member(ord(first))}-{class_member(ord(last))}", False, False
        )

    def _name(self, name: str) -> str:
        kind = "t" if _is_terminal(name) else "r"
        return f"{self._prefix}_{kind}_{name.lower()}"


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _unquoted(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise UnwritableGrammar(f"the string {quoted} cannot be read") from None
