"""How a model divides its probability among the texts of several options.

The share of an option is the probability that the model writes the text of this option, if it must
write one of them. Where the texts differ, the model is asked for the next token. The probability of
a token is the share of all options that continue with it. Where all texts continue in the same way,
the model is not asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

#: Options that share less probability than this are not told apart: each gets an equal part.
_MIN_SHARE = 1e-3
#: If the texts differ in the middle of a word of up to this length, the model writes the whole
#: word, because a tokenizer may have one token for it.
_MAX_WORD = 32


class _Beginning(Struct, frozen=True):
    """The beginning of an answer. ``options``: the numbers of the options that begin with the text
    ``written``. ``share``: their probability."""

    written: str
    options: tuple[int, ...]
    share: float


class OptionShares:
    """The shares of the options with these texts. The caller asks the model for the next token
    after the text ``beginning`` and gives its probabilities to ``feed``, until ``beginning`` is
    None."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._compared = _folded(self._texts)
        self.shares = [0.0] * len(texts)
        self._open: list[_Beginning] = []
        self._current: _Beginning | None = None
        self._continue("", tuple(range(len(texts))), 1.0)
        self._advance()

    @property
    def beginning(self) -> str | None:
        """The text after which the next token must be known; None if all shares are known."""
        return None if self._current is None else self._current.written

    def feed(self, tokens: Mapping[str, float]) -> None:
        """Divide the share of the current beginning. ``tokens``: text of a token → its probability.
        If no option goes on with any of the tokens, the option that has ended gets the share,
        because engines report no probabilities if the likeliest token ends the answer. If none has
        ended, each gets an equal part; but if nothing is written yet, none gets any."""
        current = self._current
        assert current is not None
        groups: dict[tuple[str, tuple[int, ...]], float] = {}
        for token, probability in tokens.items():
            if (group := self._match(current, token)) is not None:
                groups[group] = groups.get(group, 0.0) + probability
        total = sum(groups.values())
        for (written, options), probability in groups.items():
            self._continue(written, options, current.share * probability / total)
        if not total and current.written:
            length = len(current.written)
            ended = tuple(each for each in current.options if len(self._texts[each]) == length)
            self._divide(ended or current.options, current.share)
        self._advance()

    def _match(self, current: _Beginning, token: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the text that is written with the token, and the options that begin with it. The
        options are those that have ended if no other goes on with the token."""
        start = len(current.written)
        text = token if start else token.lstrip()
        if not text:
            return None
        rests = {option: self._compared[option][start:] for option in current.options}
        compared = text if self._compared is self._texts else text.lower()
        going_on = tuple(option for option, rest in rests.items() if rest.startswith(compared))
        if going_on:
            return self._texts[going_on[0]][: start + len(text)], going_on
        ended = [option for option, rest in rests.items() if _is_end(rest, compared)]
        if not ended:
            return None
        longest = max(len(rests[option]) for option in ended)
        ended = [option for option in ended if len(rests[option]) == longest]
        return self._texts[ended[0]], tuple(ended)

    def _continue(self, written: str, options: tuple[int, ...], share: float) -> None:
        texts = {self._texts[option] for option in options}
        if len(texts) == 1 or share < _MIN_SHARE:
            self._divide(options, share)
            return
        beginning = max(written, _whole_words(_common_beginning(texts)), key=len)
        self._open.append(_Beginning(beginning, options, share))

    def _divide(self, options: tuple[int, ...], share: float) -> None:
        for option in options:
            self.shares[option] += share / len(options)

    def _advance(self) -> None:
        self._current = self._open.pop() if self._open else None


def _common_beginning(texts: Collection[str]) -> str:
    first, last = min(texts), max(texts)
    same = next(
        (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None
    )
    return first[:same]


def _whole_words(text: str) -> str:
    """Return the text without the part of a word at its end, unless this part is long."""
    end = max(0, text.rfind(" "))
    return text[:end] if len(text) - end <= _MAX_WORD else text


def _is_end(rest: str, token: str) -> bool:
    """Return whether the token ends an option that has this rest."""
    return token.startswith(rest) and not token[len(rest) : len(rest) + 1].isalnum()


def _folded(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts in lower case, if they are still distinct and as long as before."""
    folded = tuple(text.lower() for text in texts)
    is_alike = len(set(folded)) == len(set(texts)) and list(map(len, folded)) == list(
        map(len, texts)
    )
    return folded if is_alike else texts
