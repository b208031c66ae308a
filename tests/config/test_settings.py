"""Settings: precedence of the sources, error messages, and the origin of each value."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import Struct

from antiphon.config.folders import runtime_folder
from antiphon.config.keys import ApiKey
from antiphon.config.load import (
    LoadedSettings,
    disable_usage_statistics,
    load,
    proxy_variables,
)
from antiphon.config.mcp import McpServer
from antiphon.config.model import DEFAULT_MODEL, Model
from antiphon.config.oidc import OidcIssuer
from antiphon.config.options import (
    Option,
    from_options,
    options,
    resolve_variables,
    setting_value,
)
from antiphon.config.settings import Settings
from antiphon.config.tenants import Tenant
from antiphon.errors import SetupError

DIGEST = "0" * 64


def read(text: str = "", flags: dict[str, Any] | None = None, **environ: str) -> LoadedSettings:
    """Load settings from a file with ``text``, environment variables and flags."""
    Path("antiphon.toml").write_text(text)
    return load(flags, environ={f"ANTIPHON_{name}": value for name, value in environ.items()})


def refused(text: str = "", flags: dict[str, Any] | None = None, **environ: str) -> str:
    with pytest.raises(SetupError) as caught:
        read(text, flags, **environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- sources -------------------------------------------------------------------------------------


def test_every_setting_has_a_default() -> None:
    loaded = load(environ={})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert set(loaded.origins) == set(options(Settings))
    assert (loaded.settings.host, loaded.settings.port) == ("127.0.0.1", 8000)
    assert loaded.settings.models == {DEFAULT_MODEL: Model(source=DEFAULT_MODEL)}
    assert loaded.settings.threads is None


def test_flags_override_variables_override_the_file() -> None:
    file = 'host = "a"\nport = 1\nmax_items = 5'
    loaded = read(file, {"host": "c"}, HOST="b", PORT="2")
    assert (loaded.settings.host, loaded.settings.port, loaded.settings.max_items) == ("c", 2, 5)
    origins = loaded.origins
    assert (origins["host"], origins["port"]) == ("--host", "ANTIPHON_PORT")
    assert (origins["max_items"], origins["max_tools"]) == ("antiphon.toml", "default")


def test_settings_in_a_table_override_each_other_one_by_one() -> None:
    file = '[web_search]\nengine = "exa"\nkey = "k"\nurl = "http://a"\n[sandbox]\nmemory = "4g"'
    loaded = read(file, {"web_search.url": "http://c"}, WEB_SEARCH_URL="http://b", SANDBOX="off")
    search, sandbox = loaded.settings.web_search, loaded.settings.sandbox
    assert (search.engine, search.key, search.url) == ("exa", "k", "http://c")
    assert (sandbox.kind, sandbox.memory, sandbox.pool) == ("off", "4g", 1)
    names = ("web_search.url", "web_search.engine", "sandbox.kind", "sandbox.pool")
    assert [loaded.origins[name] for name in names] == [
        "--web-search-url",
        "antiphon.toml",
        "ANTIPHON_SANDBOX",
        "default",
    ]


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("[web_search]\nengin = 1", "web_search.engin is unknown; did you mean web_search.engine?"),
        ("[sandbox]\npool = -1", "sandbox.pool must be a whole number, 0 or more, not -1"),
        ("sandbox = 'off'", 'sandbox must be a table, not "off": set sandbox.kind'),
        ("image_generation = 'off'", 'image_generation must be a table, not "off"'),
        (
            "[models.Qwen3-1.7B]\nload = 'demand'",
            'models.Qwen3-1.7B is unknown; a name with a dot needs quotes: [models."Qwen3-1.7B"]',
        ),
        (
            "[mcp.servers.my.pc]\nurl = 'x'",
            'mcp.servers.my.pc is unknown; a name with a dot needs quotes: [mcp.servers."my.pc"]',
        ),
        ("web_search_url = 'x'", "web_search_url is unknown; did you mean web_search.url?"),
        ("retention_days = 1", "retention_days is unknown; did you mean retention.days?"),
        ("[mcp_servers.a]\nurl = 'x'", "mcp_servers is unknown; did you mean mcp.servers?"),
        ("web_index = 'x'", "web_index is unknown; did you mean web_search.index?"),
        ("code_timeout_s = 1", "code_timeout_s is unknown; did you mean sandbox.code_timeout_s?"),
        ("program_memory_mb = 9", "program_memory_mb is unknown; did you mean programs.memory_mb?"),
        ("[mcp.servers.a]\nurls = 'x'", "mcp.servers.a.urls is unknown; did you mean url?"),
    ],
)
def test_error_names_the_table_of_a_setting(file: str, complaint: str) -> None:
    assert refused(file) == f"antiphon.toml: {complaint}"


def test_settings_that_belong_together_are_in_tables() -> None:
    assert len([name for name in options(Settings) if "." not in name]) <= 90


def test_one_server_implements_a_tool() -> None:
    one, two = (
        f"[mcp.servers.{name}]\nurl = 'http://h'\nimplements = 'web_search'" for name in "ab"
    )
    assert read(one).settings.mcp.servers["a"].implements == "web_search"
    assert refused(f"{one}\n{two}") == "mcp.servers a and b both implement web_search"
    mapped = "[mcp.servers.a]\ntool = 'shell'\nimplements = 'web_search'"
    assert "implements needs a url or a command" in refused(mapped)


def test_oauth_client_of_an_mcp_server_is_whole() -> None:
    server = "[mcp.servers.a]\noauth_token_url = 'http://h'\noauth_client_id = 'a'\n"
    assert "set url and all of oauth_token_url" in refused(f"{server}url = 'http://h'")
    scope = "[mcp.servers.a]\nurl = 'http://h'\noauth_scope = 'a'\n"
    assert "set url and all of oauth_token_url" in refused(scope)
    whole = f"{server}oauth_client_secret = 'secret'\n"
    assert "set url and all of oauth_token_url" in refused(f"{whole}command = 'a'")
    header = "url = 'http://h'\nheaders.Authorization = 'a'\n"
    assert "set headers.Authorization or OAuth" in refused(f"{whole}{header}")
    relative = whole.replace("http://h", "login.example")
    assert "oauth_token_url must begin with https://" in refused(f"{relative}url = 'http://h'")


def test_another_file_can_be_loaded(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("port = 7")
    Path("antiphon.toml").write_text("port = 6")
    assert load(environ={"ANTIPHON_CONFIG": str(other)}).settings.port == 7
    named = load(environ={"ANTIPHON_CONFIG": "nowhere.toml"}, file=other)
    assert (named.settings.port, named.origins["port"]) == (7, str(other))


def test_missing_config_file_is_an_error() -> None:
    with pytest.raises(SetupError, match=r"^absent\.toml cannot be read: No such file"):
        load(environ={"ANTIPHON_CONFIG": "absent.toml"})


def example(option: Option) -> tuple[str, object]:
    """Return the text of a valid value of ``option``, and the value."""
    texts: dict[str, tuple[str, object]] = {
        "a text": ("x", "x"),
        "a number from 0 to 1": ("0.5", 0.5),
        "a number from 0.01 to 1": ("0.5", 0.5),
        "a number from 0 to 2": ("0.5", 0.5),
        "a path": ("x", Path("x")),
        "a list of texts": ("x,y", ("x", "y")),
        "true or false": ("true", True),
    }
    if option.kind.startswith('"'):
        text = option.kind.split('"')[1]
        return text, text
    return texts.get(option.kind, ("9", 9))


@pytest.mark.requirement("VN-6")
def test_every_option_has_a_flag_and_a_variable() -> None:
    for name, option in options(Settings).items():
        if name in ("models", "default_model", "summary_model"):
            continue
        if option.kind == "a table" or option.kind.startswith("tables "):
            continue
        text, value = example(option)
        assert option.flag is not None or option.secret
        assert setting_value(load({name: text}, environ={}).settings, name) == value
        assert setting_value(load(environ={option.env: text}).settings, name) == value
        is_bare = text in ("9", "0.5", "true")
        content = f"{name} = {text}" if is_bare else f'{name} = "{text}"'
        if option.kind == "a list of texts":
            content = f'{name} = ["x", "y"]'
        assert setting_value(read(content).settings, name) == value


@pytest.mark.requirement("VN-6")
def test_options_of_the_only_model_have_flags() -> None:
    for name, option in options(Model).items():
        if option.kind == "a table":
            continue
        text, value = example(option)
        loaded = load({"models": ["m=a.gguf"]}, model_flags={name: text}, environ={})
        assert getattr(loaded.settings.models["m"], name) == value


@pytest.mark.requirement("VN-6")
def test_template_formats_and_defaults_of_a_model_are_settings() -> None:
    loaded = read(
        """
        [models.m]
        source = "a.gguf"
        template = "t.jinja"
        reasoning_format = "think"
        tool_format = "hermes"
        temperature = 0.5
        max_output_tokens = 7
        context_size = 512
        """
    )
    model = loaded.settings.models["m"]
    assert (str(model.template), model.reasoning_format) == ("t.jinja", "think")
    assert (model.tool_format, model.temperature) == ("hermes", 0.5)
    assert (model.max_output_tokens, model.context_size) == (7, 512)


def test_default_folders_follow_the_xdg_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    settings = load(environ={}).settings
    assert settings.cache_dir == tmp_path / "c" / "antiphon" / "models"
    assert settings.store == str(Path.home() / ".local/share/antiphon/responses.db")


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/antiphon"),
        ({"TMPDIR": "/scratch"}, f"/scratch/antiphon-{os.geteuid()}"),
        ({"XDG_RUNTIME_DIR": "relative"}, f"/tmp/antiphon-{os.geteuid()}"),
    ],
)
def test_folder_of_sockets_belongs_to_the_user(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert runtime_folder() == Path(folder)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "antiphon.toml: prot is unknown; did you mean port?"),
        ("port = 70000", "antiphon.toml: port must be a whole number from 0 to 65535, not 70000"),
        ('port = "1"', 'antiphon.toml: port must be a whole number from 0 to 65535, not "1"'),
        (
            "[models.m]\nsuorce = 'x'",
            "antiphon.toml: models.m.suorce is unknown; did you mean source?",
        ),
        (
            "[models.m]\nupstream = 'http://127.0.0.1:1/v1'",
            "antiphon.toml: models.m.upstream is unknown; did you mean source?",
        ),
        (
            "[models.m]\nalias = []\nsource = ''",
            "antiphon.toml: models.m.alias is unknown; did you mean aliases?",
        ),
        (
            "[[keys]]\ntenant = 'x'",
            "antiphon.toml: keys[0].sha256 is missing: SHA-256 of the key, in lower-case hex.",
        ),
        ("models = 5", "antiphon.toml: models must be tables [models.NAME], not 5"),
        ("keys = 5", "antiphon.toml: keys must be tables [[keys]], not 5"),
        ("[models]\nm = 5", "antiphon.toml: models.m must be a table, not 5"),
        ("[models]", "models is empty: configure at least one model"),
        ("default_model = 'x'", 'default_model "x" is not served'),
    ],
)
def test_error_names_the_setting_in_the_file(text: str, message: str) -> None:
    assert refused(text) == message


@pytest.mark.parametrize(
    "text",
    [
        "[[keys]]\nsha256 = 'x'\ntools = ['search']",
        "[tenants.a]\ntools = ['search']",
        "[oidc.a]\nissuer = 'https://a'\naudience = 'b'\n[[oidc.a.grants]]\ntools = ['search']",
    ],
)
def test_limit_names_a_tool_that_exists(text: str) -> None:
    assert 'tools must be a list of "apply_patch" or' in refused(text)


def test_error_names_the_variable_or_the_flag() -> None:
    assert refused(PROT="1") == "ANTIPHON_PROT is unknown; did you mean ANTIPHON_PORT?"
    assert refused(METRICS="all") == (
        'ANTIPHON_METRICS must be "loopback" or "everybody" or "nobody", not "all"'
    )
    assert refused(flags={"keepalive_s": "0"}) == (
        '--keepalive-s must be a number above 0, not "0"'
    )


def test_error_messages_hold_no_secrets() -> None:
    assert "CANARY" not in refused("chat.key = ['CANARY']")


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


def test_models_keep_the_order_of_the_file() -> None:
    settings = read(FILE).settings
    assert list(settings.models) == ["small", "big"]
    small = settings.models["small"]
    assert (small.aliases, small.temperature, small.top_p) == (("gpt-5.5",), 0, None)
    assert small.template_kwargs == {"enable_thinking": False}
    assert settings.default_model == "gpt-5.5"


def test_flags_select_configured_models_and_add_others() -> None:
    file = FILE.replace("default_model", "# default_model")
    models = read(file, {"models": ["big", "x=a=b.gguf"]}).settings.models
    assert list(models) == ["big", "x"]
    assert models["big"].source == "owner/Big-GGUF:Q4_K_M"
    assert models["x"].source == "a=b.gguf"
    assert read(file, MODELS="small, y=z").origins["models"] == "ANTIPHON_MODELS"


def test_variable_names_several_servers_of_a_model() -> None:
    variable = "q=http://a:1/v1, https://b:2/v1,r=x.gguf, s=http://c:3/v1"
    models = read("", MODELS=variable).settings.models
    assert {name: model.source for name, model in models.items()} == {
        "q": "http://a:1/v1,https://b:2/v1",
        "r": "x.gguf",
        "s": "http://c:3/v1",
    }


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
def test_default_model_name_is_derived_from_the_source(source: str, name: str) -> None:
    assert load({"models": [source]}, environ={}).settings.models == {name: Model(source=source)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["=x"], "'=x' is not a model"),
        (["x="], "'x=' is not a model"),
        (["a/m.gguf", "b/m.gguf"], "two models are named 'm'"),
    ],
)
def test_ambiguous_model_names_are_refused(given: list[str], message: str) -> None:
    assert message in refused(flags={"models": given})


def test_alias_of_two_models_is_refused() -> None:
    file = "[models.a]\nsource='x'\naliases=['n']\n[models.b]\nsource='y'\naliases=['n']"
    assert refused(file) == "models a and b are both named 'n'"


@pytest.mark.parametrize("environ", [{}, {"UP": ""}], ids=["unset", "empty"])
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("models.a.api_key", "[models.a]\nsource = 'http://h'\napi_key = '$UP'"),
        (
            "mcp.servers.a.headers.X",
            "[mcp.servers.a]\nurl = 'http://h'\nheaders = { X = '$UP' }",
        ),
        ("mcp.servers.a.env.X", "[mcp.servers.a]\ncommand = 'a'\nenv = { X = '$UP' }"),
        (
            "mcp.servers.a.oauth_client_secret",
            "[mcp.servers.a]\nurl = 'http://h'\noauth_client_secret = '$UP'",
        ),
        (
            "files_options.key",
            "store = 'store.db'\nfiles = 's3://bucket'\nfiles_options = { key = '$UP' }",
        ),
    ],
)
def test_value_from_the_environment_must_not_be_empty(
    name: str, table: str, environ: dict[str, str]
) -> None:
    Path("antiphon.toml").write_text(table)
    with pytest.raises(SetupError) as failure:
        load(environ=environ)
    assert str(failure.value) == f"{name}: the environment variable is not set or empty: UP"


#: Values of the settings that hold texts, by the types of the settings.
FROM_ENVIRONMENT: dict[Any, Any] = {
    str: "$UP",
    str | None: "$UP",
    tuple[str, ...]: ("a", "$UP"),
    dict[str, str]: {"a": "$UP"},
    dict[str, Any]: {"a": ["$UP"]},
}


@pytest.mark.parametrize("kind", [Settings, Model, McpServer, OidcIssuer])
def test_every_text_may_come_from_the_environment(kind: type[Struct]) -> None:
    found = set()
    for name, option in options(kind).items():
        value = FROM_ENVIRONMENT.get(get_args(option.type)[0])
        if value is None:
            assert not option.secret
            continue
        needed = {"source": "a"} if kind is Model else {}
        if kind is OidcIssuer:
            needed = {"issuer": "a", "audience": "a", "grants": ()}
        settings = from_options(kind, {**needed, name: value})
        resolved = setting_value(resolve_variables(settings, {"UP": "secret"}), name)
        assert "secret" in repr(resolved) and "$" not in repr(resolved)
        with pytest.raises(SetupError, match=f"^{re.escape(name)}.*not set or empty: UP$"):
            resolve_variables(settings, {})
        found.add(name)
    assert found, "no setting holds a text"
    if kind is Settings:
        assert {"store", "bus", "encryption_keys", "web_search.key", "webhook.secrets"} <= found


@pytest.mark.parametrize("text", ["$", "$1", "a$UP", "$UP ", "$UP$UP"])
def test_other_texts_with_a_dollar_stay_as_they_are(text: str) -> None:
    assert load(environ={"UP": "x"}, flags={"store": text}).settings.store == text


def test_upstream_key_may_come_from_the_environment() -> None:
    lines = ("[models.a]", 'source = "http://h"', 'api_key = "$UP"', "[models.b]", 'source = "b"')
    Path("antiphon.toml").write_text("\n".join((*lines, 'api_key = "k"')))
    models = load(environ={"UP": "secret"}).settings.models
    assert [model.api_key for model in models.values()] == ["secret", "k"]
    with pytest.raises(
        SetupError, match=r"models\.a\.api_key: the environment variable is not set or empty: UP"
    ):
        load(environ={})
    assert "CANARY" not in refused('[models.a]\nsource = "a"\napi_key = ["CANARY"]')


def test_keys_come_from_tables_or_from_a_variable() -> None:
    table = f'[[keys]]\ntenant = "t"\nsha256 = "{DIGEST}"\nrequests_per_minute = 5'
    assert read(table).settings.keys == (ApiKey(tenant="t", sha256=DIGEST, requests_per_minute=5),)
    assert read("", KEYS=f"a={DIGEST}, b={DIGEST}").settings.keys == (
        ApiKey(tenant="a", sha256=DIGEST),
        ApiKey(tenant="b", sha256=DIGEST),
    )
    assert refused(KEYS="sk-CANARY") == (
        "ANTIPHON_KEYS must be TENANT=SHA256, with commas between several"
    )


def test_example_of_the_settings_page_loads() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    assert tomllib.loads(example)
    settings = read(example).settings
    assert settings.models["qwen"].aliases == ("gpt-5.5",)
    assert settings.keys[0].tenant == "team-a"


def test_usage_statistics_of_engines_are_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    for name in ("HF_HUB_DISABLE_TELEMETRY", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    disable_usage_statistics()
    assert (os.environ["DO_NOT_TRACK"], os.environ["VLLM_NO_USAGE_STATS"]) == ("0", "1")


def test_adapter_name_must_be_unique() -> None:
    with pytest.raises(SetupError, match="model a and its adapter are both named 'a'"):
        read('[models.a]\nsource = "x"\nadapters = { a = "file" }')
    two = '[models.a]\nsource = "x"\nadapters = { b = "f" }\n[models.b]\nsource = "y"'
    assert "both named 'b'" in refused(two)


def test_tables_of_tenants(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text("[tenants.team-a]\nmax_responses = 5\n")
    assert load(environ={}, file=file).settings.tenants == {"team-a": Tenant(max_responses=5)}
    file.write_text("[tenants.team-a]\nmax_responses = -1\n")
    with pytest.raises(SetupError, match=r"tenants\.team-a\.max_responses"):
        load(environ={}, file=file)
    file.unlink()
    with pytest.raises(SetupError, match="ANTIPHON_TENANTS"):
        load(environ={"ANTIPHON_TENANTS": "a=1"})


def test_source_may_be_a_list_of_addresses(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(
        '[models.fleet]\nsource = ["http://a:1", "http://b:1"]\nengine = "completions"\n'
        'router = "smg"\n'
    )
    model = load(file=file, environ={}).settings.models["fleet"]
    assert (model.source, model.router) == ("http://a:1,http://b:1", "smg")
    for bad in ("source = [1]", "source = []", 'source = "http://a"\nrouter = "nginx"'):
        file.write_text(f"[models.fleet]\n{bad}\n")
        with pytest.raises(SetupError, match=r"models\.fleet\.(source|router) must be"):
            load(file=file, environ={})


def test_proxy_variables_contain_no_secrets_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {"https_proxy": "http://p:1", "SSL_CERT_FILE": "/ca", "ANTIPHON_KEY": "k"}
    )
    assert proxy_variables() == {"https_proxy": "http://p:1", "SSL_CERT_FILE": "/ca"}
