"""Settings as they are shown: where each comes from, and no secret."""

from __future__ import annotations

from pathlib import Path

from antiphon.config.load import load
from antiphon.config.report import report_settings
from antiphon.config.settings import Settings

SECRETS = """
store = "postgresql://user:PASSWORD@db.example/antiphon"
webhook.secrets = ["whsec_PASSWORD"]
web_search.key = "PASSWORD"
encryption_keys = ["one:PASSWORD"]

[models.far]
source = "http://user:PASSWORD@127.0.0.1:9000/v1"
engine = "responses"
api_key = "PASSWORD"

[mcp.servers.tickets]
url = "http://127.0.0.1:9001/mcp"
headers = { Authorization = "PASSWORD", x-other = "PASSWORD" }

[mcp.servers.calc]
command = "python"
env = { ANY_NAME = "PASSWORD" }

[[keys]]
tenant = "team"
sha256 = "5ec5e7000000000000000000000000000000000000000000000000000000abcd"
"""


def test_no_secret_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(SECRETS)
    loaded = load(environ={}, file=file)
    shown = list(report_settings(loaded.settings, loaded.origins))
    text = repr(shown)
    assert "PASSWORD" not in text and "5ec5e7" not in text
    values = {each.name: each.value for each in shown}
    assert values["store"] == '"postgresql://hidden@db.example/antiphon"'
    assert "tickets" in str(values["mcp.servers"]) and "team" in str(values["keys"])


def test_origins_are_shown() -> None:
    loaded = load({"port": "9000"}, environ={"ANTIPHON_LOG_LEVEL": "debug"})
    shown = {each.name: each for each in report_settings(loaded.settings, loaded.origins)}
    assert (shown["port"].value, shown["port"].origin) == ("9000", "--port")
    assert shown["log_level"].origin == "ANTIPHON_LOG_LEVEL"
    assert (shown["host"].value, shown["host"].origin) == ('"127.0.0.1"', "default")
    assert shown["webhook.url"].value is None
    assert all(each.group and each.help for each in shown.values())


def test_settings_of_a_program_say_so() -> None:
    shown = {each.name: each.origin for each in report_settings(Settings(port=1), {})}
    assert (shown["port"], shown["host"]) == ("program", "default")
