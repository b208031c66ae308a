"""The files of deploy/ say what the server understands: its settings, its ports, its routes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from antiphon.backends.scripted import ScriptedBackend
from antiphon.cli.main import COMMANDS
from antiphon.config.load import load
from antiphon.config.options import options
from antiphon.config.settings import Settings
from antiphon.store.memory.store import MemoryStore
from tests.conformance.served import Server

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DIGEST = "0" * 64
GIVEN = {"POSTGRES_PASSWORD": "secret", "ANTIPHON_KEYS": f"default={DIGEST}"}


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def image() -> dict[str, str]:
    """What the image sets."""
    joined = text("Dockerfile").replace("\\\n", " ")
    (variables,) = re.findall(r"^ENV (.+)$", joined, re.MULTILINE)
    return dict(pair.split("=", 1) for pair in variables.split())


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text("compose.yaml"))
    return found


def interpolated(value: str) -> str:
    """``${NAME:?message}`` and ``${NAME:-default}`` as Compose has them."""

    def one(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        assert kind == "-" or name in GIVEN, f"nobody gives {name}"
        return GIVEN.get(name, rest)

    return re.sub(r"\$\{(\w+):([?-])([^}]*)\}", one, value)


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name."""
    documents = yaml.safe_load_all(text("kubernetes.yaml"))
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["Deployment", "antiphon"]["spec"]["template"]["spec"]
    return spec


def in_compose() -> dict[str, str]:
    given = compose()["services"]["antiphon"]["environment"]
    return {**image(), **{name: interpolated(value) for name, value in given.items()}}


def in_kubernetes() -> dict[str, str]:
    secrets = manifests()["Secret", "antiphon"]["stringData"]
    values = dict(image())
    for given in pod()["containers"][0]["env"]:
        source = given.get("valueFrom", {}).get("secretKeyRef")
        assert source is None or source["name"] == "antiphon"
        values[given["name"]] = given["value"] if source is None else secrets[source["key"]]
    values["ANTIPHON_KEYS"] = values["ANTIPHON_KEYS"].replace("REPLACED", DIGEST)
    # What Kubernetes says besides of a service that is called antiphon.
    return {
        **{"ANTIPHON_SERVICE_HOST": "10.0.0.1", "ANTIPHON_PORT_8000_TCP": "tcp://10.0.0.1:8000"},
        **values,
    }


def seconds(value: str) -> float:
    match = re.fullmatch(r"(\d+)(s|m|h)", value)
    assert match is not None, value
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.iterdir()))
def test_every_variable_of_ours_is_a_setting(name: str) -> None:
    known = {option.env for option in options(Settings).values()}
    assert set(re.findall(r"\bANTIPHON_[A-Z0-9_]+", text(name))) <= known


@pytest.mark.parametrize("environ", [in_compose(), in_kubernetes()], ids=["compose", "kubernetes"])
def test_the_server_can_read_what_it_is_given(
    environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(environ=environ).settings
    assert settings.store.startswith("postgresql://antiphon:")
    assert settings.host == "0.0.0.0" and not settings.allow_unauthenticated
    assert [key.tenant for key in settings.keys] == ["default"]


def test_the_databases_of_the_urls_are_those_that_are_started() -> None:
    services = compose()["services"]
    at = re.search(r"@([\w-]+):(\d+)/(\w+)", in_compose()["ANTIPHON_STORE"])
    assert at is not None and at[1] in services and at[2] == "5432"
    assert services[at[1]]["environment"]["POSTGRES_DB"] == at[3]
    at = re.search(r"@([\w-]+):(\d+)/(\w+)", in_kubernetes()["ANTIPHON_STORE"])
    assert at is not None
    service = manifests()["Service", at[1]]["spec"]
    assert service["ports"][0]["port"] == int(at[2])
    database = manifests()["StatefulSet", at[1]]["spec"]["template"]
    assert service["selector"].items() <= database["metadata"]["labels"].items()
    named = {each["name"]: each.get("value") for each in database["spec"]["containers"][0]["env"]}
    assert named["POSTGRES_DB"] == at[3]


def test_everybody_means_the_same_port() -> None:
    port = int(image()["ANTIPHON_PORT"])
    assert f"EXPOSE {port}\n" in text("Dockerfile")
    assert f"set $antiphon antiphon:{port};" in text("nginx.conf")
    assert [each["containerPort"] for each in pod()["containers"][0]["ports"]] == [port]
    services = compose()["services"]
    assert f":{port}/ready" in services["antiphon"]["healthcheck"]["test"][-1]
    listened = re.search(r"listen (\d+);", text("nginx.conf"))
    assert listened is not None
    assert [each.split(":")[-1] for each in services["nginx"]["ports"]] == [listened[1]]


def test_the_image_runs_a_command_of_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (program,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]', text("Dockerfile"), re.MULTILINE)
    (command,) = re.findall(r'^CMD \["(\w+)"\]', text("Dockerfile"), re.MULTILINE)
    assert program in project["scripts"]
    assert {command, *pod()["containers"][0]["args"]} <= COMMANDS.keys()
    (extras,) = re.findall(r"/src\[([\w,]+)\]", text("Dockerfile"))
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    for line in re.findall(r"^COPY (.+) \S+$", text("Dockerfile"), re.MULTILINE):
        assert [name for name in line.split() if not (ROOT / name).exists()] == []


async def test_probes_ask_what_is_answered() -> None:
    container = pod()["containers"][0]
    asked = [
        container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    ]
    server = Server(ScriptedBackend(["hi"]), MemoryStore())
    transport = httpx.ASGITransport(server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://pod") as client:
        assert [(await client.get(path)).status_code for path in asked] == [200, 200, 200]


def test_selectors_find_the_pods() -> None:
    found = manifests()
    labels = found["Deployment", "antiphon"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert found[kind, "antiphon"]["spec"]["selector"]["matchLabels"] == labels
    service = found["Service", "antiphon"]["spec"]
    assert service["selector"] == labels
    assert service["ports"][0]["targetPort"] == pod()["containers"][0]["ports"][0]["name"]
    volumes = {each["name"] for each in pod()["volumes"]}
    assert {each["name"] for each in pod()["containers"][0]["volumeMounts"]} <= volumes


def test_a_server_that_stops_has_the_time_its_runs_have() -> None:
    """Background runs, then requests, then what readers have not fetched."""
    flush_s = 5
    service = compose()["services"]["antiphon"]
    drain_s = float(service["environment"]["ANTIPHON_DRAIN_S"])
    assert seconds(service["stop_grace_period"]) >= 2 * drain_s + flush_s
    drain_s = float(in_kubernetes()["ANTIPHON_DRAIN_S"])
    wait_s = float(pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod()["terminationGracePeriodSeconds"] >= wait_s + 2 * drain_s + flush_s


def test_the_balancer_takes_what_the_server_takes() -> None:
    (mebibytes,) = re.findall(r"client_max_body_size (\d+)m;", text("nginx.conf"))
    assert int(mebibytes) * 2**20 == Settings().max_body_bytes
    assert "proxy_buffering off;" in text("nginx.conf")
    (hours,) = re.findall(r"proxy_read_timeout (\w+);", text("nginx.conf"))
    assert seconds(hours) > Settings().keepalive_s


def test_nginx_understands_its_file(tmp_path: Path) -> None:
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("nginx is not installed")
    tried = subprocess.run(
        [
            program, "-t", "-q", "-p", str(tmp_path), "-e", "stderr",
            "-c", str(DEPLOY / "nginx.conf"), "-g", f"pid {tmp_path}/pid;",
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )  # fmt: skip
    assert tried.returncode == 0, tried.stderr
