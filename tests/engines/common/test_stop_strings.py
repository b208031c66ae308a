from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.common.stop_strings import StopStrings

LETTERS = st.text(alphabet="abé", max_size=30)
STOPS = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3)


def run(pieces: list[bytes], stops: tuple[str, ...]) -> tuple[bytes, StopStrings]:
    """What was let go, and the machine at the end."""
    machine = StopStrings(stops)
    pending: list[bytes] = []
    removed = b""
    for piece in pieces:
        pending.append(piece)
        for _ in range(machine.feed(piece)):
            removed += pending.pop(0)
        if machine.matched_stop:
            break
    return removed, machine


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 60)))
def test_token_boundaries_do_not_change_the_stop_position(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    spelled = text.encode()
    places = sorted({0, len(spelled), *(cut % (len(spelled) + 1) for cut in cuts)})
    removed, machine = run([spelled[i:j] for i, j in pairwise(places)], tuple(stops))
    ends = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        assert machine.matched_stop is None
        assert spelled.startswith(removed)
        return
    _, at, stop = min(ends)
    assert machine.matched_stop == stop
    assert spelled.startswith(removed)
    rest = text[:at].encode()[len(removed) :]
    assert machine.tail == rest.decode("utf-8", "ignore")


@given(text=LETTERS, stop=st.text(alphabet="abé", min_size=1, max_size=4))
def test_no_more_is_held_back_than_a_stop_string_less_a_byte(text: str, stop: str) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    removed, machine = run(pieces, (stop,))
    if machine.matched_stop is None:
        assert len(pieces) - len(removed) < len(stop.encode())


def test_holds_back_only_what_may_become_a_stop_string() -> None:
    machine = StopStrings(("END",))
    assert [machine.feed(piece) for piece in (b"a", b"xE", b"N", b"d", b"E")] == [1, 0, 0, 3, 0]


def test_tokens_of_the_stop_string_are_never_released() -> None:
    machine = StopStrings(("END",))
    assert [machine.feed(piece) for piece in (b"go ", b"on E", b"N", b"D more")] == [1, 0, 0, 0]
    assert (machine.matched_stop, machine.tail) == ("END", "on ")


def test_the_first_to_end_however_the_tokens_come() -> None:
    for pieces in ([b"xabcd"], [b"xa", b"bc", b"d"], [b"x", b"a", b"b", b"c", b"d"]):
        _, machine = run(pieces, ("abc", "b", "zz"))
        assert machine.matched_stop == "b"


def test_longest_of_stop_strings_with_the_same_end_wins() -> None:
    _, machine = run([b"xabc"], ("bc", "abc", "c"))
    assert (machine.matched_stop, machine.tail) == ("abc", "x")


def test_silent_tokens_pass() -> None:
    machine = StopStrings(("END",))
    assert machine.feed(b"") == 1
    assert [machine.feed(b"E"), machine.feed(b""), machine.feed(b"x")] == [0, 0, 3]


def test_no_stop_strings_hold_nothing() -> None:
    machine = StopStrings(("",))
    assert machine.feed(b"anything") == 1
