"""The Helm chart: `helm lint`, Kubernetes' schemas, and what the rendered objects say."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from knapcache.proxy.settings import Settings
from knapcache.units import parse_amount
from tests.support.programs import find_program, run_program

pytestmark = pytest.mark.tools

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "knapcache"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
HELM = "the package helm-binary"
EVERYTHING = {
    "imagePullSecrets": [{"name": "registry"}],
    "allowedHosts": ["llm.example.com"],
    "providerKeys": {"existingSecret": "llm-keys"},
    "adminToken": {"existingSecret": "admin"},
    "persistence": {"existingClaim": "claim"},
    "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}],
    "podAnnotations": {"prometheus.io/scrape": "true"},
    "podLabels": {"team": "search"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "llm", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "fullnameOverride": "cache",
}
"""Values that use every branch of the templates, but persistence.enabled=false."""


def run_helm(folder: Path, *command: str | Path) -> str:
    places = {f"HELM_{kind}_HOME": str(folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
    return run_program(find_program("helm", HELM), *command, **places)


def render(folder: Path, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Render the chart; return the objects by kind."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    text = run_helm(folder, "template", "demo", CHART, "--namespace", "llm", "--values", file)
    (folder / "rendered.yaml").write_text(text, encoding="utf-8")
    return {found["kind"]: found for found in yaml.safe_load_all(text) if found}


SHARED = {
    "replicas": 3,
    "store": {
        "url": "rediss://valkey.llm:6379?ca=/etc/knapcache-store/ca.crt",
        "existingSecret": "store",
        "tlsSecret": "store-tls",
    },
}
"""Values of several proxies on one store."""


@pytest.mark.parametrize(
    "values",
    [{}, EVERYTHING, {"persistence": {"enabled": False}}, SHARED],
    ids=["default", "all", "none", "shared"],
)
def test_the_chart_renders_valid_objects(values: dict[str, Any], tmp_path: Path) -> None:
    assert "0 chart(s) failed" in run_helm(tmp_path, "lint", "--strict", CHART)
    objects = render(tmp_path, values)
    claim = "PersistentVolumeClaim" in objects
    assert claim == (not values.get("persistence") and not values.get("store"))
    # Its 17,000 files are too many for every environment that runs the tests.
    validate = find_program("kubernetes-validate", "the package kubernetes-validate, which is not in the lock")
    for version in ("1.25", "1.33"):
        run_program(validate, "--strict", "--quiet", "-k", version, tmp_path / "rendered.yaml")


def test_one_pod_owns_the_store(tmp_path: Path) -> None:
    spec = render(tmp_path, {})["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > Settings.model_fields["grace"].get_default()
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    variables = {item["name"]: item["value"] for item in container["env"]}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    for name in ("KNAPCACHE_PATH", "KNAPCACHE_KERNEL_CACHE"):
        assert str(Path(variables[name]).parent) in mounts, "everything that is written is below a volume"
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}


def test_replicas_share_a_store_and_are_replaced_one_by_one(tmp_path: Path) -> None:
    objects = render(tmp_path, SHARED)
    spec = objects["Deployment"]["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    variables = {item["name"]: item for item in container["env"]}
    wanted = {"KNAPCACHE_SECRET": "secret", "KNAPCACHE_STORE_USER": "user", "KNAPCACHE_STORE_PASSWORD": "password"}
    for name, key in wanted.items():
        found = variables[name]["valueFrom"]["secretKeyRef"]
        assert found == {"name": "store", "key": key, "optional": key != "secret"}
    settings = Settings(
        host="0.0.0.0",
        secret="ab" * 32,
        store=variables["KNAPCACHE_STORE"]["value"],
        drain=variables["KNAPCACHE_DRAIN"]["value"],
    )
    assert settings.store_address is not None
    assert pod["terminationGracePeriodSeconds"] > settings.drain + settings.grace
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert settings.store_address.ca is not None
    assert volumes[mounts[str(Path(settings.store_address.ca).parent)]]["secret"] == {"secretName": "store-tls"}
    assert volumes["data"] == {"name": "data", "emptyDir": {}}, "one claim cannot be mounted by pods of several nodes"
    labels = spec["selector"]["matchLabels"]
    assert objects["PodDisruptionBudget"]["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["labelSelector"]["matchLabels"] == labels
    assert "PodDisruptionBudget" not in render(tmp_path, {})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicas": 2}, "replicas above 1 needs store.url"),
        ({"store": {"url": "redis://valkey:6379"}}, "store.url needs store.existingSecret"),
        ({"store": {"url": "redis://:pw@valkey", "existingSecret": "s"}}, "must not have a user and a password"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        render(tmp_path, values)


def test_settings_and_secrets_reach_the_proxy(tmp_path: Path) -> None:
    values = {**EVERYTHING, "fullnameOverride": "", "settings": 'capacity = "1GB"\nlog_format = "json"\n'}
    objects = render(tmp_path, values)
    assert objects["ConfigMap"]["data"]["knapcache.toml"] == values["settings"]
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "/etc/knapcache/knapcache.toml"
    assert container["envFrom"] == [{"secretRef": {"name": "llm-keys"}}]
    variables = {item["name"]: item for item in container["env"]}
    token = variables["KNAPCACHE_ADMIN_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert token == {"name": "admin", "key": "admin-token"}
    hosts = Settings(host="0.0.0.0", allowed_hosts=variables["KNAPCACHE_ALLOWED_HOSTS"]["value"]).allowed_hosts
    assert {"demo-knapcache", "demo-knapcache.llm.svc.cluster.local", "localhost", "llm.example.com"} <= set(hosts)
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]


def test_a_change_of_the_settings_restarts_the_pod(tmp_path: Path) -> None:
    marks = [
        render(tmp_path, {"settings": text})["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        for text in ('capacity = "1GB"', 'capacity = "2GB"')
    ]
    assert marks[0] != marks[1]


def test_default_values_are_valid_settings_that_fit_their_volume() -> None:
    settings = Settings(host="0.0.0.0", **tomllib.loads(VALUES["settings"]))
    volume = parse_amount(VALUES["persistence"]["size"] + "B")
    assert volume is not None
    assert volume[0] > 1.2 * (settings.capacity + settings.request_log_bytes + settings.audit_log_bytes)
