"""Settings: which source wins, what is refused and in which words, where values came from."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.keys import ApiKey
from antiphon.config.load import Loaded, disable_usage_statistics, load
from antiphon.config.model import DEFAULT_MODEL, Model
from antiphon.config.options import options
from antiphon.config.settings import Settings
from antiphon.errors import SetupError

DIGEST = "0" * 64


def read(text: str = "", flags: dict[str, Any] | None = None, **environ: str) -> Loaded:
    """Settings of a file with ``text``, variables and flags."""
    Path("antiphon.toml").write_text(text)
    return load(flags, environ={f"ANTIPHON_{name}": value for name, value in environ.items()})


def refused(text: str = "", flags: dict[str, Any] | None = None, **environ: str) -> str:
    with pytest.raises(SetupError) as caught:
        read(text, flags, **environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- sources -------------------------------------------------------------------------------------


def test_without_anything_there_is_a_default_for_everything() -> None:
    loaded = load(environ={})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert set(loaded.origins) == set(Settings.__struct_fields__)
    assert (loaded.settings.host, loaded.settings.port) == ("127.0.0.1", 8000)
    assert loaded.settings.models == {DEFAULT_MODEL: Model(source=DEFAULT_MODEL)}
    assert loaded.settings.threads >= 1


def test_flags_win_over_variables_win_over_the_file() -> None:
    file = 'host = "a"\nport = 1\nmax_items = 5'
    loaded = read(file, {"host": "c"}, HOST="b", PORT="2")
    assert (loaded.settings.host, loaded.settings.port, loaded.settings.max_items) == ("c", 2, 5)
    origins = loaded.origins
    assert (origins["host"], origins["port"]) == ("--host", "ANTIPHON_PORT")
    assert (origins["max_items"], origins["max_tools"]) == ("antiphon.toml", "default")


def test_another_file_can_be_named(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("port = 7")
    Path("antiphon.toml").write_text("port = 6")
    assert load(environ={"ANTIPHON_CONFIG": str(other)}).settings.port == 7
    named = load(environ={"ANTIPHON_CONFIG": "nowhere.toml"}, file=other)
    assert (named.settings.port, named.origins["port"]) == (7, str(other))


def test_a_named_file_must_be_there() -> None:
    with pytest.raises(SetupError, match=r"^absent\.toml cannot be read: No such file"):
        load(environ={"ANTIPHON_CONFIG": "absent.toml"})


@pytest.mark.requirement("VN-6")
def test_every_option_can_be_given_in_every_way() -> None:
    texts = {
        "a text": ("x", "x"),
        "a path": ("x", Path("x")),
        "a list of texts": ("x,y", ("x", "y")),
        "true or false": ("true", True),
    }
    for name, option in options(Settings).items():
        if name in ("models", "mcp_servers", "keys", "default_model", "summary_model"):
            continue
        if option.kind == "a table":
            continue
        text, value = texts.get(option.kind, ("9", 9))
        if option.kind.startswith('"'):
            text = value = option.kind.split('"')[1]
        assert getattr(load({name: text}, environ={}).settings, name) == value
        assert getattr(load(environ={option.env: text}).settings, name) == value


def test_folders_follow_the_xdg_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    settings = load(environ={}).settings
    assert settings.cache_dir == tmp_path / "c" / "antiphon" / "models"
    assert settings.store == str(Path.home() / ".local/share/antiphon/responses.db")


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", "antiphon.toml: prot is unknown; did you mean port?"),
        ("port = 70000", "antiphon.toml: port must be a whole number from 0 to 65535, not 70000"),
        ('port = "1"', 'antiphon.toml: port must be a whole number from 0 to 65535, not "1"'),
        (
            "[models.m]\nsuorce = 'x'",
            "antiphon.toml: models.m.suorce is unknown; did you mean source?",
        ),
        (
            "[models.m]\nalias = []\nsource = ''",
            "antiphon.toml: models.m.alias is unknown; did you mean aliases?",
        ),
        (
            "[[keys]]\ntenant = 'x'",
            "antiphon.toml: keys[0].sha256 is missing: SHA-256 of the key, in hex.",
        ),
        ("models = 5", "antiphon.toml: models must be tables [models.NAME], not 5"),
        ("keys = 5", "antiphon.toml: keys must be tables [[keys]], not 5"),
        ("[models]\nm = 5", "antiphon.toml: models.m must be a table, not 5"),
        ("[models]", "models is empty: there must be one to serve"),
        ("default_model = 'x'", 'default_model "x" is not served'),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, complaint: str) -> None:
    assert refused(text) == complaint


def test_a_mistake_elsewhere_is_named_by_its_variable_or_flag() -> None:
    assert refused(PROT="1") == "ANTIPHON_PROT is unknown; did you mean ANTIPHON_PORT?"
    assert refused(METRICS="all") == (
        'ANTIPHON_METRICS must be "loopback" or "everybody" or "nobody", not "all"'
    )
    assert refused(flags={"keepalive_s": "0"}) == (
        '--keepalive-s must be a number above 0, not "0"'
    )


def test_secrets_stand_in_no_message() -> None:
    assert "CANARY" not in refused("chat_key = ['CANARY']")


# --- models and keys -----------------------------------------------------------------------------

FILE = """
default_model = "gpt-5.5"
[models.small]
source = "~/s.gguf"
aliases = ["gpt-5.5"]
temperature = 0
template_kwargs = { enable_thinking = false }
[models.big]
source = "owner/Big-GGUF:Q4_K_M"
"""


def test_models_keep_the_order_and_values_of_the_file() -> None:
    settings = read(FILE).settings
    assert list(settings.models) == ["small", "big"]
    small = settings.models["small"]
    assert (small.aliases, small.temperature, small.top_p) == (("gpt-5.5",), 0, None)
    assert small.template_kwargs == {"enable_thinking": False}
    assert settings.default_model == "gpt-5.5"


def test_the_command_line_picks_models_of_the_file_and_names_others() -> None:
    file = FILE.replace("default_model", "# default_model")
    models = read(file, {"models": ["big", "x=a=b.gguf"]}).settings.models
    assert list(models) == ["big", "x"]
    assert models["big"].source == "owner/Big-GGUF:Q4_K_M"
    assert models["x"].source == "a=b.gguf"
    assert read(file, MODELS="small, y=z").origins["models"] == "ANTIPHON_MODELS"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/models/Qwen3-4B.Q8_0.gguf", "Qwen3-4B.Q8_0"),
        ("a/b.gguf", "b"),
        ("folder/model/", "model"),
        ("hf:owner/Repo-GGUF/file.gguf", "Repo"),
        ("hf:owner/Repo", "Repo"),
        ("owner/Repo-gguf:Q4_0", "Repo"),
        (DEFAULT_MODEL, DEFAULT_MODEL),
    ],
)
def test_a_model_is_called_by_its_source(source: str, name: str) -> None:
    assert load({"models": [source]}, environ={}).settings.models == {name: Model(source=source)}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["=x"], "'=x' is no model"),
        (["x="], "'x=' is no model"),
        (["a/m.gguf", "b/m.gguf"], "two models are called 'm'"),
    ],
)
def test_models_without_a_name_of_their_own_are_refused(given: list[str], complaint: str) -> None:
    assert complaint in refused(flags={"models": given})


def test_a_name_stands_for_one_model() -> None:
    file = "[models.a]\nsource='x'\naliases=['n']\n[models.b]\nsource='y'\naliases=['n']"
    assert refused(file) == "models a and b are both called 'n'"


def test_the_key_of_an_upstream_may_be_in_the_environment() -> None:
    lines = ("[models.a]", 'source = "http://h"', 'api_key = "$UP"', "[models.b]", 'source = "b"')
    Path("antiphon.toml").write_text("\n".join((*lines, 'api_key = "k"')))
    models = load(environ={"UP": "secret"}).settings.models
    assert [model.api_key for model in models.values()] == ["secret", "k"]
    with pytest.raises(SetupError, match=r"models\.a\.api_key: the environment has no UP"):
        load(environ={})
    assert "CANARY" not in refused('[models.a]\nsource = "a"\napi_key = ["CANARY"]')


def test_keys_come_from_tables_or_from_the_environment() -> None:
    table = f'[[keys]]\ntenant = "t"\nsha256 = "{DIGEST}"\nrequests_per_minute = 5'
    assert read(table).settings.keys == (ApiKey(tenant="t", sha256=DIGEST, requests_per_minute=5),)
    assert read("", KEYS=f"a={DIGEST}, b={DIGEST}").settings.keys == (
        ApiKey(tenant="a", sha256=DIGEST),
        ApiKey(tenant="b", sha256=DIGEST),
    )
    assert refused(KEYS="sk-CANARY") == (
        "ANTIPHON_KEYS must be TENANT=SHA256, with commas between several"
    )


def test_the_example_of_the_settings_page_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    assert tomllib.loads(example)
    settings = read(example).settings
    assert settings.models["qwen"].aliases == ("gpt-5.5",)
    assert settings.keys[0].tenant == "team-a"


def test_engines_are_told_not_to_tell_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    for name in ("HF_HUB_DISABLE_TELEMETRY", "TRTLLM_NO_USAGE_STATS", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    disable_usage_statistics()
    assert (os.environ["DO_NOT_TRACK"], os.environ["VLLM_NO_USAGE_STATS"]) == ("0", "1")


def test_an_adapter_has_a_name_of_its_own() -> None:
    with pytest.raises(SetupError, match="model a and its adapter are both called 'a'"):
        read('[models.a]\nsource = "x"\nadapters = { a = "file" }')
    two = '[models.a]\nsource = "x"\nadapters = { b = "f" }\n[models.b]\nsource = "y"'
    assert "both called 'b'" in refused(two)
