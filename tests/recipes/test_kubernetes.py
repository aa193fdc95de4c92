"""The recipes for Kubernetes: valid by Kubernetes' own schemas, and about this project's image and commands as they are."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes" / "kubernetes"
VERSION = "1.34"
"""Of Kubernetes, whose schemas kubernetes-validate brings."""

FILES = sorted(path for path in FOLDER.glob("*/*.yaml") if path.name != "kustomization.yaml")
DOCUMENTS: list[tuple[str, dict[str, Any]]] = [
    (f"{path.parent.name}/{path.stem}", document)
    for path in FILES
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
OF_KIND = {document["kind"]: document for _, document in DOCUMENTS}
RAY = OF_KIND["RayCluster"]["spec"]
RAY_GROUPS = [RAY["headGroupSpec"], *RAY["workerGroupSpecs"]]
PODS = [
    *(OF_KIND[kind]["spec"]["template"]["spec"] for kind in ("Deployment", "Job")),
    *(group["template"]["spec"] for group in RAY_GROUPS),
]


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}


@pytest.mark.parametrize(
    "document",
    [document for _, document in DOCUMENTS if document["kind"] != "RayCluster"] + [pod(spec) for spec in PODS],
    ids=lambda document: document["kind"],
)
def test_kubernetes_schemas_accept_it(document: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (extra dev)")
    validator.validate(document, VERSION, strict=True)


def test_no_pod_has_more_rights_than_it_needs() -> None:
    for spec in PODS:
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] == 1001, "the user of the Dockerfile"
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"] == container["resources"]["limits"]


def test_every_mount_has_its_volume_and_every_claim_its_file() -> None:
    claims = {document["metadata"]["name"] for _, document in DOCUMENTS if document["kind"] == "PersistentVolumeClaim"}
    for spec in PODS:
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]} == set(
            volumes
        )
        used = {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v}
        assert used <= claims
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory", "a /dev/shm of its own"


def test_one_server_at_a_time_that_writes_to_volumes_only() -> None:
    spec = OF_KIND["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    (server,) = spec["template"]["spec"]["containers"]
    assert server["securityContext"]["readOnlyRootFilesystem"]
    assert (server["livenessProbe"]["httpGet"]["path"], server["readinessProbe"]["httpGet"]["path"]) == (
        "/livez",
        "/readyz",
    )


def test_ray_has_a_token_reports_nothing_and_kills_nothing() -> None:
    assert RAY["authOptions"] == {"mode": "token"}
    for group in RAY_GROUPS:
        (container,) = group["template"]["spec"]["containers"]
        environment = {variable["name"]: variable["value"] for variable in container["env"]}
        assert environment["RAY_USAGE_STATS_ENABLED"] == environment["RAY_memory_monitor_refresh_ms"] == "0"
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_only_pods_of_the_ray_cluster_reach_its_ports() -> None:
    labels = {"app": "autotune-ray"}
    policy = next(d for name, d in DOCUMENTS if name == "ray/network_policy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    assert all(group["template"]["metadata"]["labels"] == labels for group in RAY_GROUPS)
