"""The Helm chart renders to valid objects with settings that the server accepts."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon.cli.commands.table import COMMANDS
from antiphon.config.load import load
from antiphon.config.settings import Settings

helm = pytest.importorskip("helm_python")

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "antiphon"
Manifests = dict[str, Any]
#: Values that turn everything on.
EVERYTHING = {
    "autoscaling": {"enabled": True},
    "opentelemetry": {"endpoint": "http://collector:4318"},
    "networkPolicy": {
        "ingressFrom": [{"namespaceSelector": {}}],
        "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
    },
    "serviceAccount": {"annotations": {"role": "files"}},
    "metrics": "everybody",
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"a": "b"},
        "tls": [{"hosts": ["antiphon.example.com"], "secretName": "tls"}],
    },
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "annotations": {"a": "b"}},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "modelClaim": {"enabled": True, "storageClassName": "fast"},
    "service": {"annotations": {"a": "b"}},
    "imagePullSecrets": [{"name": "registry"}],
    "env": [{"name": "TZ", "value": "UTC"}],
    "vectors": "pgvector",
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}


#: Kinds of other projects, whose schemas are not at hand.
_CUSTOM = ("gateway.networking.k8s.io/", "monitoring.coreos.com/")


def values_of(name: str) -> dict[str, Any]:
    """Return the values of a file of the chart."""
    found: dict[str, Any] = yaml.safe_load((CHART / name).read_text("utf-8"))
    return found


#: Values with which code runs in pods.
SANDBOX = {
    "sandbox": {
        "kubernetes": {
            "enabled": True,
            "image": "registry/python-runtime-sandbox:1",
            "runtimeClassName": "kata",
            "memory": "4g",
            "router": "http://sandbox-router-svc:8080",
            "ingressFrom": [{"podSelector": {"matchLabels": {"app": "sandbox-router"}}}],
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
        }
    }
}
CASES = {
    "default": {},
    "everything": EVERYTHING,
    "sandbox": SANDBOX,
    "vllm": values_of("values-vllm-production-stack.yaml"),
    "llm-d": values_of("values-llm-d.yaml"),
}


@functools.cache
def rendered(case: str) -> Manifests:
    """Return the objects of a case by kind."""
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(CASES[case], name="demo", namespace="prod")
    documents = [yaml.safe_load(text) for name, text in texts.items() if name.endswith(".yaml")]
    return {each["kind"]: each for each in documents if each}


def pod(manifest: Any) -> Any:
    return manifest["spec"]["template"]["spec"]


def settings_of(case: str, folder: Path) -> Settings:
    """Load the settings of a pod from its settings file and its environment variables."""
    found = rendered(case)
    file = folder / "antiphon.toml"
    file.write_text(found["ConfigMap"]["data"]["antiphon.toml"])
    given = pod(found["Deployment"])["containers"][0]["env"]
    environ = {each["name"]: each["value"] for each in given if "value" in each}
    environ["ANTIPHON_STORE"] = "postgresql://u:p@h/d"
    return load(environ=environ, file=file).settings


@pytest.mark.parametrize("case", CASES)
def test_every_object_is_valid(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the imports of the validator
        import kubernetes_validate
    for manifest in rendered(case).values():
        if manifest["apiVersion"].startswith(_CUSTOM):
            continue
        if not manifest["apiVersion"].startswith("extensions.agents.x-k8s.io/"):
            kubernetes_validate.validate(manifest, "1.33", strict=True)
        elif manifest["kind"] == "SandboxTemplate":
            template = manifest["spec"]["podTemplate"]
            named = {**template["metadata"], "name": "pod"}
            sandbox = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": named,
                "spec": template["spec"],
            }
            kubernetes_validate.validate(sandbox, "1.33", strict=True)


def test_objects_of_the_default_values() -> None:
    assert rendered("default").keys() == {
        "ConfigMap",
        "Deployment",
        "Job",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    }
    assert rendered("everything").keys() - rendered("default").keys() == {
        "HorizontalPodAutoscaler",
        "HTTPRoute",
        "Ingress",
        "PersistentVolumeClaim",
        "PodMonitor",
    }


def test_pods_of_the_default_values_reach_what_they_need() -> None:
    """The database, whose place the chart cannot know, and the downloads of models."""
    assert {} in rendered("default")["NetworkPolicy"]["spec"]["egress"]
    assert {} not in rendered("vllm")["NetworkPolicy"]["spec"]["egress"]


def test_ways_into_the_cluster_lead_to_the_service() -> None:
    found = rendered("everything")
    service = found["Service"]
    (rule,) = found["Ingress"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] == service["spec"]["ports"][0]["name"]
    (route,) = found["HTTPRoute"]["spec"]["rules"]
    assert route["backendRefs"] == [
        {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    ]
    container = pod(found["Deployment"])["containers"][0]
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}


def test_models_are_kept_in_the_claim() -> None:
    found = rendered("everything")
    (volume,) = [each for each in pod(found["Deployment"])["volumes"] if each["name"] == "models"]
    claim = found["PersistentVolumeClaim"]["metadata"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["name"]
    assert claim["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("case", CASES)
def test_pods_have_no_privileges(case: str) -> None:
    for kind in ("Deployment", "Job"):
        spec = pod(rendered(case)[kind])
        assert spec["securityContext"]["runAsNonRoot"] is True
        uses_cluster = (case, kind) == ("sandbox", "Deployment")
        assert spec["automountServiceAccountToken"] is uses_cluster
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            mounted = {each["mountPath"] for each in container["volumeMounts"]}
            assert "/tmp" in mounted
            assert {each["name"] for each in container["volumeMounts"]} <= {
                each["name"] for each in spec["volumes"]
            }


def test_selectors_match_the_pods() -> None:
    found = rendered("default")
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    job_labels = found["Job"]["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    assert not found["Service"]["spec"]["selector"].items() <= job_labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= job_labels


@pytest.mark.parametrize("case", CASES)
def test_settings_and_commands_are_those_of_the_server(case: str, tmp_path: Path) -> None:
    settings = settings_of(case, tmp_path)
    found = rendered(case)
    assert "default" in settings.models
    grace = pod(found["Deployment"])["terminationGracePeriodSeconds"]
    assert grace >= 2 * settings.drain_s + 15
    for kind in ("Deployment", "Job"):
        container = pod(found[kind])["containers"][0]
        assert container["args"][0] in COMMANDS
        assert container["envFrom"] == [{"secretRef": {"name": "antiphon"}}]


def test_values_reach_their_settings(tmp_path: Path) -> None:
    settings = settings_of("everything", tmp_path)
    assert (settings.traces, settings.metrics_export) == ("otlp", "otlp")
    assert settings.otlp_endpoint == "http://collector:4318"
    assert settings.vectors == "pgvector"
    metric = rendered("everything")["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]
    assert metric["metric"]["name"] == "antiphon_num_requests_waiting"
    assert rendered("vllm")["HorizontalPodAutoscaler"]["spec"]["maxReplicas"] == 10
    assert settings_of("vllm", tmp_path).models["default"].router == "vllm-router"
    assert settings_of("llm-d", tmp_path).models["default"].router == "llm-d"


def test_code_runs_in_pods_of_the_warm_pool(tmp_path: Path) -> None:
    settings, found = settings_of("sandbox", tmp_path), rendered("sandbox")
    pool, template = found["SandboxWarmPool"], found["SandboxTemplate"]
    assert (settings.sandbox.kind, settings.sandbox.memory) == ("kubernetes", "4g")
    assert settings.sandbox.router == "http://sandbox-router-svc:8080"
    assert settings.sandbox.warm_pool == pool["metadata"]["name"]
    assert pool["spec"] == {
        "replicas": 2,
        "sandboxTemplateRef": {"name": template["metadata"]["name"]},
    }
    spec = template["spec"]["podTemplate"]["spec"]
    assert spec["runtimeClassName"] == "kata"
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"]["memory"] == "4864Mi"
    assert {"name": "SANDBOX_BASE_DIR", "value": "/mnt"} in container["env"]
    network = template["spec"]["networkPolicy"]
    assert network.keys() == {"ingress"}, "without rules, nothing goes out"
    server, router = network["ingress"][0]["from"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert server["podSelector"]["matchLabels"].items() <= labels.items()
    assert router == SANDBOX["sandbox"]["kubernetes"]["ingressFrom"][0]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    account = found["RoleBinding"]["subjects"][0]
    assert account["name"] == found["ServiceAccount"]["metadata"]["name"]
    reached = found["NetworkPolicy"]["spec"]["egress"][-2]["to"][0]["podSelector"]["matchLabels"]
    assert reached.items() <= template["spec"]["podTemplate"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "values",
    [
        {"sandbox": {"kubernetes": {"enabled": True}}},
        {"replica": 3},
        {"vectors": "faiss"},
        {"podMonitor": {"enabled": True}},
        {"httpRoute": {"enabled": True}},
        {"replicas": 0},
        {"settings": {"a": 1}},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError):
        chart.render(values, name="demo", namespace="prod")


def test_metric_of_autoscaling_is_one_of_the_server() -> None:
    metrics = (CHART.parents[2] / "docs" / "metrics.md").read_text("utf-8")
    name = values_of("values.yaml")["autoscaling"]["waitingRequests"]["metric"]
    assert f"| `{name}` |" in metrics
