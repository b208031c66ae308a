"""Declarations become flags, names, words and errors: over a struct of every kind of field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from antiphon.config.options import (
    declare,
    did_you_mean,
    environment_options,
    from_table,
    from_text,
    literal,
    options,
    read_file,
    split_list,
)
from antiphon.errors import SetupError


class Sample(Struct, frozen=True, kw_only=True):
    must: Annotated[str, declare("Must be there.", group="One")]
    count: Annotated[int, declare("Counted.", ge=1, le=9)] = 3
    share: Annotated[float, declare("A part.", gt=0)] = 0.5
    least: Annotated[Annotated[int, Meta(ge=0)] | None, declare("Perhaps.")] = None
    on: Annotated[bool, declare("A switch.")] = False
    choice: Annotated[Literal["b", "a"], declare("One of them.")] = "b"
    names: Annotated[tuple[str, ...], declare("Several.", flag="--called")] = ()
    place: Annotated[Path, declare("Where.", default="here")] = Path("x")
    word: Annotated[str | None, declare("Not shown.", flag=None, secret=True)] = None


OPTIONS = options(Sample)


def test_everything_follows_from_the_declaration() -> None:
    assert {name: option.kind for name, option in OPTIONS.items()} == {
        "must": "a text",
        "count": "a whole number from 1 to 9",
        "share": "a number above 0",
        "least": "a whole number, 0 or more",
        "on": "true or false",
        "choice": '"b" or "a"',
        "names": "a list of texts",
        "place": "a path",
        "word": "a text",
    }
    defaults = [None, "3", "0.5", "not set", "false", '"b"', "[]", "here", "not set"]
    assert [option.default for option in OPTIONS.values()] == defaults
    assert [OPTIONS[name].flag for name in ("must", "names", "word")] == [
        "--must",
        "--called",
        None,
    ]
    assert OPTIONS["place"].env == "ANTIPHON_PLACE"
    assert (OPTIONS["must"].help, OPTIONS["must"].group) == ("Must be there.", "One")
    assert [name for name, option in OPTIONS.items() if option.is_switch] == ["on"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "7", 7),
        ("share", "1.5", 1.5),
        ("least", "0", 0),
        ("on", "true", True),
        ("on", "0", False),
        ("choice", "a", "a"),
        ("names", "x, y,,z ", ("x", "y", "z")),
        ("names", "", ()),
        ("place", "~/there", Path.home() / "there"),
        ("must", "8000", "8000"),
    ],
)
def test_text_is_read_as_the_type(name: str, text: str, value: object) -> None:
    assert from_text(OPTIONS[name], text, "--flag") == value


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("count", "ten", '--it must be a whole number from 1 to 9, not "ten"'),
        ("count", "10", '--it must be a whole number from 1 to 9, not "10"'),
        ("share", "nan", '--it must be a number above 0, not "nan"'),
        ("on", "perhaps", '--it must be true or false, not "perhaps"'),
        ("choice", "c", '--it must be "b" or "a", not "c"'),
        ("place", "", '--it must be a path, not ""'),
    ],
)
def test_text_that_does_not_fit_is_refused_in_words(name: str, text: str, complaint: str) -> None:
    with pytest.raises(SetupError) as caught:
        from_text(OPTIONS[name], text, "--it")
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"must": "x", "cuont": 1}, "f: t.cuont is unknown; did you mean count?"),
        ({"must": "x", "zzz": 1}, "f: t.zzz is unknown"),
        ({}, "f: t.must is missing: Must be there."),
        ({"must": 5}, "f: t.must must be a text, not 5"),
        ({"must": "x", "count": "3"}, 'f: t.count must be a whole number from 1 to 9, not "3"'),
        ({"must": "x", "count": True}, "f: t.count must be a whole number from 1 to 9, not true"),
        ({"must": "x", "names": "a"}, 'f: t.names must be a list of texts, not "a"'),
        ({"must": "x", "place": 1}, "f: t.place must be a path, not 1"),
        ({"must": "x", "word": ["CANARY"]}, "f: t.word must be a text, not the given value"),
        ([], "f: t must be a table, not []"),
    ],
)
def test_tables_are_held_to_the_declaration(table: Any, complaint: str) -> None:
    with pytest.raises(SetupError) as caught:
        from_table(Sample, table, "f: t.")
    assert str(caught.value) == complaint


def test_a_table_becomes_the_struct() -> None:
    found = from_table(Sample, {"must": "x", "share": 2, "names": ["a"], "place": "p"}, "")
    assert found == Sample(must="x", share=2.0, names=("a",), place=Path("p"))


def test_variables_are_ours_or_refused() -> None:
    found = environment_options(
        {"ANTIPHON_COUNT": "4", "COUNT": "5", "ANTIPHON_FILE": "f"},
        OPTIONS.values(),
        besides=["ANTIPHON_FILE"],
    )
    assert found == {"count": "4"}
    with pytest.raises(
        SetupError, match=r"^ANTIPHON_COUTN is unknown; did you mean ANTIPHON_COUNT"
    ):
        environment_options({"ANTIPHON_COUTN": "4"}, OPTIONS.values())


def test_what_kubernetes_sets_for_a_service_of_our_name_is_not_ours() -> None:
    given = {
        "ANTIPHON_SERVICE_HOST": "10.0.0.1",
        "ANTIPHON_SERVICE_PORT": "80",
        "ANTIPHON_SERVICE_PORT_HTTP": "80",
        "ANTIPHON_COUNT": "tcp://10.0.0.1:80",
        "ANTIPHON_PORT_80_TCP_ADDR": "10.0.0.1",
        "ANTIPHON_GPU_SERVICE_HOST": "10.0.0.2",
    }
    assert environment_options(given, OPTIONS.values()) == {}


def test_files_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    absent, broken, binary = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "c.toml"
    broken.write_text("port = \n")
    binary.write_bytes(b"\xff\xfe")
    for path, words in ((absent, "cannot be read: No such file"), (broken, "is not valid TOML: ")):
        with pytest.raises(SetupError) as caught:
            read_file(path)
        assert str(caught.value).startswith(f"{path} {words}")
        assert "\n" not in str(caught.value)
    with pytest.raises(SetupError, match="is not valid TOML"):
        read_file(binary)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not set"),
        (True, "true"),
        (1.5, "1.5"),
        ('a"b', '"a\\"b"'),
        ("a\x7fb", '"a\\u007fb"'),
        (("a", 1), '["a", 1]'),
        (Path("x"), '"x"'),
        ({}, "{}"),
        ({"a": [True]}, '{ "a" = [true] }'),
    ],
)
def test_values_are_shown_as_toml(value: object, text: str) -> None:
    assert literal(value) == text


def test_the_nearest_name_is_offered_only_if_it_is_near() -> None:
    assert did_you_mean("potr", ["port", "host"]) == "; did you mean port?"
    assert did_you_mean("whatever", ["port", "host"]) == ""


def test_list_is_split_at_commas_without_empty_parts() -> None:
    assert split_list(" a ,b,, ") == ["a", "b"]


def test_names_of_other_servers_are_known() -> None:
    known = ["context_size", "projector", "gpu_layers", "n_text"]
    assert did_you_mean("n_ctx", known) == "; did you mean context_size?"
    assert did_you_mean("n_ctx", ["port"]) == "; did you mean context_size in [models.NAME]?"
    assert did_you_mean("mmproj", known) == "; did you mean projector?"
    assert did_you_mean("system_prompt", ["instructions"]) == "; did you mean instructions?"
    assert did_you_mean("n-gpu-layers", known) == "; did you mean gpu_layers?"
