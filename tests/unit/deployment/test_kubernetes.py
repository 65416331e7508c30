"""The chart, rendered by real Helm, fits the schemas of Kubernetes, the settings and what the program serves."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from taskframework.api import health
from taskframework.brokers.rabbitmq.topology import Names
from taskframework.model.status import LANES
from taskframework.settings import Settings
from taskframework.settings.load import load_settings
from taskframework.settings.release import RELEASE
from tests.support.pages import ROOT

CHART = ROOT / "config" / "kubernetes" / "chart"
PYTHON = ROOT / ".venv-deploy" / "bin" / "python"
_MARGIN = 15

Document = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    if not PYTHON.exists():
        reason = "Helm and the schemas of Kubernetes are not here: run `make deploy-tools`"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def _ask(values: Document) -> tuple[list[Document], list[str]]:
    answer = json.loads(_answer(json.dumps(values)))
    return answer["documents"], answer["problems"]


@cache
def _answer(values: str) -> str:
    command = [str(PYTHON), str(ROOT / ".ci" / "render")]
    return subprocess.run(command, input=values, capture_output=True, text=True, timeout=60, check=True).stdout


def render(**values: Any) -> dict[str, Document]:
    """The documents by kind and name; they are as Kubernetes wants them."""
    documents, problems = _ask(values)
    assert problems == []
    return {f"{document['kind']} {document['metadata']['name']}": document for document in documents}


def pod_of(documents: dict[str, Document], role: str) -> Document:
    pod: Document = documents[f"Deployment taskframework-{role}"]["spec"]["template"]["spec"]
    return pod


def settings_of(documents: dict[str, Document], role: str) -> Settings:
    """What the program of a pod would run with, given a secret."""
    [container] = pod_of(documents, role)["containers"]
    secret = {"broker-url": "amqp://rabbitmq/", "store-url": "mongodb://mongodb/tasks?replicaSet=rs0"}
    environ = {it["name"]: it.get("value") or secret[it["valueFrom"]["secretKeyRef"]["key"]] for it in container["env"]}
    return load_settings(ROOT / "application.yml", environ=environ).settings


@pytest.mark.parametrize("role", ["api", "worker"])
def test_a_pod_runs_with_settings_that_load_and_is_asked_where_it_listens(role: str) -> None:
    documents = render(modules=["shop.tasks"], settings={"api": {"max_body": 2_000_000}, "app": {"source": "a"}})
    settings = settings_of(documents, role)
    assert settings.app.modules == ("shop.tasks",)
    assert (settings.api.max_body, settings.app.source) == (2_000_000, "a")
    assert settings.broker.url == "amqp://rabbitmq/"
    listens = (
        (settings.api.host, settings.api.port)
        if role == "api"
        else (settings.worker.http_host, settings.worker.http_port)
    )
    [container] = pod_of(documents, role)["containers"]
    [port] = container["ports"]
    assert listens == ("0.0.0.0", port["containerPort"])
    served = {getattr(route, "path", "") for route in health.router.routes}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in served
        assert asked["port"] == port["name"]


@pytest.mark.parametrize("role", ["api", "worker"])
@pytest.mark.parametrize("seconds", [30, 300])
def test_a_stop_gets_the_time_that_the_settings_promise(role: str, seconds: int) -> None:
    documents = render(stopSeconds=seconds)
    pod = pod_of(documents, role)
    pause = int(
        pod["containers"][0].get("lifecycle", {"preStop": {"exec": {"command": ["sleep", 0]}}})["preStop"]["exec"][
            "command"
        ][1]
    )
    timeout = settings_of(documents, role).shutdown.await_termination_timeout.total_seconds()
    assert timeout == seconds
    assert pod["terminationGracePeriodSeconds"] == timeout + pause + _MARGIN
    _, problems = _ask({"settings": {"shutdown": {"await_termination_timeout": "1s"}}})
    assert problems, "one number says both"


@pytest.mark.parametrize("role", ["api", "worker"])
def test_a_pod_has_no_rights_that_it_does_not_need(role: str) -> None:
    documents = render()
    pod = pod_of(documents, role)
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"USER {pod['securityContext']['runAsUser']}\n" in (ROOT / "docker" / "Dockerfile").read_text()
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    assert "Secret" not in {name.split()[0] for name in documents}


def test_selectors_find_the_pods_of_their_role_alone() -> None:
    documents = render()
    for role in ("api", "worker"):
        labels = documents[f"Deployment taskframework-{role}"]["spec"]["template"]["metadata"]["labels"].items()
        other = documents[f"Deployment taskframework-{'api' if role == 'worker' else 'worker'}"]
        spec = documents[f"PodDisruptionBudget taskframework-{role}"]["spec"]
        policy = documents[f"NetworkPolicy taskframework-{role}"]["spec"]
        for selector in (spec["selector"]["matchLabels"], policy["podSelector"]["matchLabels"]):
            assert selector.items() <= labels
            assert not selector.items() <= other["spec"]["template"]["metadata"]["labels"].items()
    service = documents["Service taskframework-api"]["spec"]
    assert service["selector"] == documents["Deployment taskframework-api"]["spec"]["selector"]["matchLabels"]


def test_a_network_policy_without_names_lets_no_pod_in() -> None:
    documents = render(networkPolicy={"metricsFrom": []})
    assert "ingress" not in documents["NetworkPolicy taskframework-worker"]["spec"], "an empty `from` would mean all"
    [api] = documents["NetworkPolicy taskframework-api"]["spec"]["ingress"]
    assert api["from"] == [{"podSelector": {}}]
    assert not [name for name in render(networkPolicy={"enabled": False}) if name.startswith("NetworkPolicy")]


def test_workers_come_and_go_with_the_messages_of_every_lane() -> None:
    documents = render(
        autoscaling={"enabled": True, "taskTypes": ["charge-card"], "max": 7}, settings={"broker": {"prefix": "shop"}}
    )
    assert "replicas" not in documents["Deployment taskframework-worker"]["spec"], "KEDA says how many"
    scaled = documents["ScaledObject taskframework-worker"]["spec"]
    assert scaled["scaleTargetRef"] == {"name": "taskframework-worker"}
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 7)
    queues = [trigger["metadata"]["queueName"] for trigger in scaled["triggers"]]
    assert queues == [
        Names(settings_of(documents, "worker").broker.prefix).queue("charge-card", lane) for lane in LANES
    ]
    names = {variable["name"] for variable in pod_of(documents, "worker")["containers"][0]["env"]}
    for trigger in scaled["triggers"]:
        assert trigger["type"] == "rabbitmq"
        metadata = trigger["metadata"]
        assert metadata.keys() == {"protocol", "hostFromEnv", "queueName", "mode", "value"}
        assert (metadata["protocol"], metadata["mode"], metadata["value"]) == ("amqp", "QueueLength", "100")
        assert metadata["hostFromEnv"] in names
    assert _ask({"autoscaling": {"enabled": True}})[1], "which queues?"


def test_a_wrong_value_is_refused() -> None:
    wrong: Document = {"replicas": 3, "worker": {"replica": 3}, "modules": [], "stopSeconds": "30s"}
    _, [problem] = _ask(wrong)
    assert "additional properties 'replicas' not allowed" in problem
    for place in ("/worker", "/modules", "/stopSeconds"):
        assert f"'{place}'" in problem


def test_the_manifests_are_the_chart_with_its_defaults() -> None:
    command = [str(PYTHON), str(ROOT / ".ci" / "render"), "--yaml"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert (CHART.parent / "manifests.yml").read_text() == made, "run: make manifests"
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == RELEASE


@pytest.mark.parametrize("path", ["Dockerfile", "rabbitmq/Dockerfile"])
def test_hadolint_finds_nothing_in_the_images(path: str) -> None:
    program = Path(PYTHON.parent / "hadolint")
    done = subprocess.run([program, ROOT / "docker" / path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
