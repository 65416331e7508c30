"""The compose set-up fits the settings and itself: what a part is told of the others is there. Nothing is started."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from taskframework.settings import Settings
from taskframework.settings.load import load_settings
from tests.support.pages import ROOT

DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
PROMETHEUS: dict[str, Any] = yaml.safe_load((ROOT / "config" / "prometheus" / "prometheus.yml").read_text())
COLLECTOR: dict[str, Any] = yaml.safe_load((ROOT / "config" / "otel-collector.yml").read_text())
OURS = ("api", "worker")
#: Seconds beyond the grace of its tasks that a worker may need to stop; with several processes it is the longest.
_MARGIN = timedelta(seconds=15)


def settings_of(service: str) -> Settings:
    """What a service of ours runs with: the files of the image, and its environment."""
    return load_settings(ROOT / "application.yml", environ=SERVICES[service]["environment"]).settings


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What it sees of this folder: places in the container by places here."""
    pairs = (volume.split(":")[:2] for volume in service.get("volumes", ()) if volume.startswith("."))
    return {target: source for source, target in pairs}


@pytest.mark.parametrize("name", SERVICES)
def test_each_file_image_and_service_that_a_service_names_exists(name: str) -> None:
    service = SERVICES[name]
    assert set(service.get("depends_on", ())) <= SERVICES.keys()
    for source in mounts(service).values():
        assert (DOCKER / source).exists(), source
    named = {volume.split(":")[0] for volume in service.get("volumes", ()) if not volume.startswith(".")}
    assert named <= COMPOSE["volumes"].keys()
    if "image" in service:
        assert re.fullmatch(r"[\w./-]+:v?\d+(\.\d+)*", service["image"]), "a version that stays"
    else:
        build = service["build"]
        context = DOCKER / (build if isinstance(build, str) else build["context"])
        assert (context / ("Dockerfile" if isinstance(build, str) else build["dockerfile"])).is_file()
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), "for this machine only"


@pytest.mark.parametrize("name", OURS)
def test_our_services_have_settings_that_load_and_find_their_servers(name: str) -> None:
    settings = settings_of(name)
    assert {urlsplit(settings.broker.url).hostname, urlsplit(settings.store.url).hostname} <= SERVICES.keys()
    assert settings.observability.log_format == "json", "the profile was read"
    assert settings.app.modules == ("example",)
    [folder] = [
        source
        for target, source in mounts(SERVICES[name]).items()
        if target == SERVICES[name]["environment"]["PYTHONPATH"]
    ]
    assert (DOCKER / folder / "example.py").is_file()
    user = SERVICES["rabbitmq"]["environment"]
    assert urlsplit(settings.broker.url).netloc.startswith(
        f"{user['RABBITMQ_DEFAULT_USER']}:{user['RABBITMQ_DEFAULT_PASS']}@"
    )


@pytest.mark.parametrize("name", OURS)
def test_a_stop_gives_tasks_the_time_that_the_settings_promise(name: str) -> None:
    grace = SERVICES[name]["stop_grace_period"]
    assert (
        timedelta(seconds=int(grace.removesuffix("s")))
        >= settings_of(name).shutdown.await_termination_timeout + _MARGIN
    )


def test_health_checks_and_prometheus_ask_where_our_services_listen() -> None:
    ports = {"api": settings_of("api").api.port, "worker": settings_of("worker").worker.http_port}
    for name, port in ports.items():
        assert f"http://127.0.0.1:{port}/readyz" in SERVICES[name]["healthcheck"]["test"][-1]
    assert "0.0.0.0" in SERVICES["api"]["command"]
    assert settings_of("worker").worker.http_host == "0.0.0.0"
    ours, broker = PROMETHEUS["scrape_configs"]
    assert {entry["names"][0]: entry["port"] for entry in ours["dns_sd_configs"]} == ports
    assert urlsplit("//" + broker["static_configs"][0]["targets"][0]).hostname in SERVICES


def test_prometheus_has_the_rules_and_grafana_the_dashboard() -> None:
    [rules] = PROMETHEUS["rule_files"]
    folder = mounts(SERVICES["prometheus"])["/etc/prometheus"]
    assert (DOCKER / folder / rules.removeprefix("/etc/prometheus/")).is_file()
    provisioned = DOCKER / mounts(SERVICES["grafana"])["/etc/grafana/provisioning"]
    [provider] = yaml.safe_load((provisioned / "dashboards" / "taskframework.yml").read_text())["providers"]
    [dashboard] = [target for target in mounts(SERVICES["grafana"]) if target.endswith("/dashboard.json")]
    assert dashboard.startswith(provider["options"]["path"])
    for source in yaml.safe_load((provisioned / "datasources" / "taskframework.yml").read_text())["datasources"]:
        assert urlsplit(source["url"]).hostname in SERVICES


def test_spans_go_to_the_collector_and_on() -> None:
    for name in OURS:
        endpoint = urlsplit(settings_of(name).observability.otlp_endpoint or "")
        listens = COLLECTOR["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
        assert (endpoint.hostname, endpoint.path) == ("collector", "/v1/traces")
        assert listens == f"0.0.0.0:{endpoint.port}"
    [config] = mounts(SERVICES["collector"])
    assert SERVICES["collector"]["command"] == [f"--config={config}"]
    for pipeline in COLLECTOR["service"]["pipelines"].values():
        for kind, components in pipeline.items():
            assert set(components) == COLLECTOR[kind].keys(), "each part is defined and used"
        assert pipeline["processors"][0] == "memory_limiter", "what is refused costs least at the front"
    assert set(COLLECTOR["service"]["extensions"]) == COLLECTOR["extensions"].keys()
    assert COLLECTOR["exporters"]["otlp"]["endpoint"].split(":")[0] in SERVICES


def test_the_image_names_its_user_by_number() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    [user] = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert user.isdecimal(), "else Kubernetes refuses it under runAsNonRoot"
    assert f"useradd --uid {user} " in text
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists(), name
