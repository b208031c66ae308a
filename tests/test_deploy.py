"""The files in deploy/ match the server: settings, ports and routes."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.bootstrap.access import check_exposure, create_first_key, page_is_served
from antiphon.cli.commands.table import COMMANDS
from antiphon.config.load import load
from antiphon.config.options import options
from antiphon.config.settings import Settings
from antiphon.testing.memory_store.store import MemoryStore
from tests.conformance.server import Server
from tests.harness import asgi_client
from tests.test_locks import IMAGE_EXTRAS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DIGEST = "0" * 64
ENVIRONMENT = {"POSTGRES_PASSWORD": "secret", "ANTIPHON_KEYS": f"default={DIGEST}"}


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def image() -> dict[str, str]:
    """Return the variables that the image sets."""
    joined = text("Dockerfile").replace("\\\n", " ")
    (variables,) = re.findall(r"^ENV (.+)$", joined, re.MULTILINE)
    return dict(pair.split("=", 1) for pair in variables.split())


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text("compose.yaml"))
    return found


def interpolated(value: str) -> str:
    """Replace ``${NAME:?message}`` and ``${NAME:-default}``, as Compose does."""

    def one(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        assert kind == "-" or name in ENVIRONMENT, f"nobody gives {name}"
        return ENVIRONMENT.get(name, rest)

    return re.sub(r"\$\{(\w+):([?-])([^}]*)\}", one, value)


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the manifests by kind and name."""
    documents = yaml.safe_load_all(text("kubernetes.yaml"))
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["Deployment", "antiphon"]["spec"]["template"]["spec"]
    return spec


def compose_environment() -> dict[str, str]:
    given = compose()["services"]["antiphon"]["environment"]
    return {**image(), **{name: interpolated(value) for name, value in given.items()}}


def kubernetes_environment() -> dict[str, str]:
    secrets = manifests()["Secret", "antiphon"]["stringData"]
    values = dict(image())
    for given in pod()["containers"][0]["env"]:
        if "fieldRef" in given.get("valueFrom", {}):
            assert given["name"] == "POD_IP"
            continue
        source = given.get("valueFrom", {}).get("secretKeyRef")
        assert source is None or source["name"] == "antiphon"
        values[given["name"]] = given["value"] if source is None else secrets[source["key"]]
    values["ANTIPHON_KEYS"] = values["ANTIPHON_KEYS"].replace("REPLACED", DIGEST)
    # Kubernetes adds these variables for a service named antiphon.
    return {
        **{"ANTIPHON_SERVICE_HOST": "10.0.0.1", "ANTIPHON_PORT_8000_TCP": "tcp://10.0.0.1:8000"},
        **values,
    }


def seconds(value: str) -> float:
    match = re.fullmatch(r"(\d+)(s|m|h)", value)
    assert match is not None, value
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


@pytest.mark.parametrize(
    "name",
    sorted(str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()),
)
def test_every_antiphon_variable_is_a_setting(name: str) -> None:
    known = {option.env for option in options(Settings).values()}
    assert set(re.findall(r"\bANTIPHON_[A-Z0-9_]+", text(name))) <= known


@pytest.mark.parametrize(
    "environ", [compose_environment(), kubernetes_environment()], ids=["compose", "kubernetes"]
)
def test_environment_is_valid(
    environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(environ=environ).settings
    assert settings.store.startswith("postgresql://antiphon:")
    assert settings.host == "0.0.0.0" and not settings.allow_unauthenticated
    assert [key.tenant for key in settings.keys] == ["default"]


async def test_a_single_container_creates_its_first_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = yaml.safe_load(text("compose.small.yaml"))
    (name, service), *others = small["services"].items()
    given = {key: interpolated(value) for key, value in service["environment"].items()}
    settings = load(environ={**image(), **given}).settings
    check_exposure(settings)
    assert page_is_served(settings) and not others
    assert all(port.startswith("${PUBLISH_ADDRESS:-127.0.0.1}:") for port in service["ports"])
    assert "antiphon" == name and service["volumes"] == ["data:/var/lib/antiphon"]
    store = MemoryStore()
    key = await create_first_key(settings, store)
    assert await create_first_key(settings, store) is None  # the second start finds the key
    (stored,) = await store.keys.list()
    assert key is not None and sha256(key.encode()).hexdigest() == stored.sha256
    assert stored.name in settings.operators and stored.name in settings.prompt_editors
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]


def test_compose_file_with_everything_has_valid_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: dict[str, Any] = yaml.safe_load(text("compose.full.yaml"))
    monkeypatch.setitem(ENVIRONMENT, "STORAGE_SECRET", "secret")
    given = full["services"]["antiphon"]["environment"]
    environ = {**compose_environment(), **{k: interpolated(v) for k, v in given.items()}}
    (file := tmp_path / "antiphon.toml").write_text(full["configs"]["settings"]["content"])
    assert full["services"]["antiphon"]["command"][-1] == "/etc/antiphon.toml"
    settings = load(environ=environ, file=file).settings
    assert settings.models["default"].engine == "chat_completions"
    assert (settings.vectors, settings.files) == ("pgvector", "s3://antiphon")
    assert settings.files_options["endpoint"] == "http://storage:7070"
    engines = re.findall(r"http://([\w-]+):8000", full["configs"]["settings"]["content"])
    assert set(engines) <= full["services"].keys() and len(engines) == 2
    named = {each for one in full["services"].values() for each in _named_volumes(one)}
    assert named <= full["volumes"].keys()


def _named_volumes(service: Mapping[str, Any]) -> Iterator[str]:
    for volume in service.get("volumes", ()):
        if not volume.startswith("."):
            yield volume.partition(":")[0]


def test_vllm_accepts_tools() -> None:
    """Without these flags, it refuses requests with tools."""
    full: dict[str, Any] = yaml.safe_load(text("compose.full.yaml"))
    for name in ("vllm-0", "vllm-1"):
        flags = [flag.partition("=")[0] for flag in full["services"][name]["command"]]
        assert {"--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser"} <= {*flags}


def test_published_ports_are_on_loopback() -> None:
    """nginx speaks no TLS."""
    for port in compose()["services"]["nginx"]["ports"]:
        assert port.startswith("${PUBLISH_ADDRESS:-127.0.0.1}:")


def test_urls_name_the_started_databases() -> None:
    services = compose()["services"]
    at = re.search(r"@([\w-]+):(\d+)/(\w+)", compose_environment()["ANTIPHON_STORE"])
    assert at is not None and at[1] in services and at[2] == "5432"
    assert services[at[1]]["environment"]["POSTGRES_DB"] == at[3]
    at = re.search(r"@([\w-]+):(\d+)/(\w+)", kubernetes_environment()["ANTIPHON_STORE"])
    assert at is not None
    service = manifests()["Service", at[1]]["spec"]
    assert service["ports"][0]["port"] == int(at[2])
    database = manifests()["StatefulSet", at[1]]["spec"]["template"]
    assert service["selector"].items() <= database["metadata"]["labels"].items()
    named = {each["name"]: each.get("value") for each in database["spec"]["containers"][0]["env"]}
    assert named["POSTGRES_DB"] == at[3]


def test_all_files_use_the_same_port() -> None:
    port = int(image()["ANTIPHON_PORT"])
    assert f"EXPOSE {port}\n" in text("Dockerfile")
    assert f"set $antiphon antiphon:{port};" in text("nginx.conf")
    assert [each["containerPort"] for each in pod()["containers"][0]["ports"]] == [port]
    services = compose()["services"]
    assert f":{port}/ready" in services["antiphon"]["healthcheck"]["test"][-1]
    listened = re.search(r"listen (\d+);", text("nginx.conf"))
    assert listened is not None
    assert [each.split(":")[-1] for each in services["nginx"]["ports"]] == [listened[1]]


def test_image_runs_an_antiphon_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (program,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]', text("Dockerfile"), re.MULTILINE)
    (command,) = re.findall(r'^CMD \["(\w+)"\]', text("Dockerfile"), re.MULTILINE)
    assert program in project["scripts"]
    assert {command, *pod()["containers"][0]["args"]} <= COMMANDS.keys()
    (extras,) = re.findall(r"^ARG EXTRAS=([\w,-]+)$", text("Dockerfile"), re.MULTILINE)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    for line in re.findall(r"^COPY (.+) \S+$", text("Dockerfile"), re.MULTILINE):
        assert [name for name in line.split() if not (ROOT / name).exists()] == []


def test_the_image_installs_the_packages_of_the_lock_file() -> None:
    (extras,) = re.findall(r"^ARG EXTRAS=([\w,-]+)$", text("Dockerfile"), re.MULTILINE)
    assert set(extras.split(",")) == IMAGE_EXTRAS
    assert f'"${{EXTRAS}}" = {extras} ]; then set -- --no-index' in text("Dockerfile")


def test_images_of_others_are_named_by_digest() -> None:
    others = map(text, ("Dockerfile", "kubernetes.yaml"))
    files = [*others, *(path.read_text() for path in DEPLOY.glob("compose*.yaml"))]
    lines = re.findall(
        r"^ *(?:ARG PYTHON_IMAGE=|(?:PYTHON_IMAGE|image): )(\S+)", "\n".join(files), re.M
    )
    names = [re.sub(r"^\$\{\w+:-(.+)\}$", r"\1", line) for line in lines if line != "antiphon"]
    assert len(set(names)) >= 7
    for name in names:
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", name), name


@pytest.mark.parametrize("name", ["antiphon", "nginx", "postgres"])
def test_containers_have_no_privileges_that_they_do_not_need(name: str) -> None:
    service = compose()["services"][name]
    assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    allowed = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
    assert set(service.get("cap_add", [])) <= (set() if name == "antiphon" else allowed)
    assert not {"privileged", "network_mode", "pid", "ipc", "devices"} & service.keys()


def test_pods_have_no_privileges() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["automountServiceAccountToken"] is False
    assert pod()["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


async def test_probes_use_existing_routes() -> None:
    container = pod()["containers"][0]
    requests = [
        container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    ]
    server = Server(ScriptedBackend(["hi"]), MemoryStore())
    async with asgi_client(server.app, base_url="http://pod") as client:
        assert [(await client.get(path)).status_code for path in requests] == [200, 200, 200]


def test_selectors_match_the_pods() -> None:
    found = manifests()
    labels = found["Deployment", "antiphon"]["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert found[kind, "antiphon"]["spec"]["selector"]["matchLabels"] == labels
    service = found["Service", "antiphon"]["spec"]
    assert service["selector"] == labels
    assert service["ports"][0]["targetPort"] == pod()["containers"][0]["ports"][0]["name"]
    volumes = {each["name"] for each in pod()["volumes"]}
    assert {each["name"] for each in pod()["containers"][0]["volumeMounts"]} <= volumes


def test_termination_grace_period_covers_the_drain() -> None:
    """The time for background runs, requests and readers."""
    flush_s = 5
    service = compose()["services"]["antiphon"]
    drain_s = float(service["environment"]["ANTIPHON_DRAIN_S"])
    assert seconds(service["stop_grace_period"]) >= 2 * drain_s + flush_s
    drain_s = float(kubernetes_environment()["ANTIPHON_DRAIN_S"])
    wait_s = float(pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod()["terminationGracePeriodSeconds"] >= wait_s + 2 * drain_s + flush_s


def test_balancer_accepts_the_body_size_of_the_server() -> None:
    (mebibytes,) = re.findall(r"client_max_body_size (\d+)m;", text("nginx.conf"))
    assert int(mebibytes) * 2**20 == Settings().max_body_bytes
    assert "proxy_buffering off;" in text("nginx.conf")
    (hours,) = re.findall(r"proxy_read_timeout (\w+);", text("nginx.conf"))
    assert seconds(hours) > Settings().keepalive_s


def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
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
        timeout=60,
    )  # fmt: skip
    assert tried.returncode == 0, tried.stderr


def test_memory_request_has_room_for_full_caches() -> None:
    container = manifests()["Deployment", "antiphon"]["spec"]["template"]["spec"]["containers"][0]
    requested = int(container["resources"]["requests"]["memory"].removesuffix("Gi")) << 10
    weights, kv_cache, saved_prompts, server = 140, 720, 512, 300
    assert requested >= weights + kv_cache + saved_prompts + server
