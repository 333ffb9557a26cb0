"""The files for Kubernetes: the sidecar's probes and metrics with a real proxy and Prometheus, and the Helm chart."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.settings.load import load_settings
from proxy.version import VERSION
from tests.docker.test_prometheus import SHIPPED, ask
from tests.documentation.commands import find_helm
from tests.raw_upstream import free_port
from tests.web.test_metrics_listener import POD, fetch

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "docker" / "kubernetes"
CHART = ROOT / "docker" / "helm" / "context-proxy"

needs_helm = pytest.mark.skipif(not find_helm(), reason="Helm is not there (`make helm` gets it)")


def read(file: str) -> dict[str, Any]:
    """The documents of a file, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((KUBERNETES / file).read_text())}


def container_of(deployment: Any) -> Any:
    spec = deployment["spec"]["template"]["spec"]
    return spec.get("initContainers", spec["containers"])[0]


def environment_of(container: Any) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


@contextmanager
def sidecar(folder: Path) -> Iterator[dict[str, int]]:
    """A proxy with the environment of the image and of the manifest; its ports by their names."""
    container = container_of(read("sidecar.yml")["Deployment"])
    image = {"CONTEXT_PROXY_KEYS_DIR": "/data/keys"}  # what would keep it from starting beside an agent without a key
    ports = {one["name"]: free_port() for one in container["ports"]} | {"": free_port()}
    own = environment_of(container) | {
        "CONTEXT_PROXY_UPSTREAM": "demo", "CONTEXT_PROXY_DB": str(folder / "a.sqlite3"),
        "CONTEXT_PROXY_PORT": str(ports[""]), "CONTEXT_PROXY_METRICS_PORT": str(ports["metrics"]),
    }  # fmt: skip
    plain = {name: value for name, value in os.environ.items() if not name.startswith("CONTEXT_")}
    command = [sys.executable, "-m", "proxy.cli.main", "serve"]
    with subprocess.Popen(command, env=plain | image | own, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            while "print(" not in (line := process.stdout.readline()):
                assert line, "it ended"
            yield ports
        finally:
            process.terminate()
            process.wait(20)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
async def test_the_probes_of_the_sidecar_and_prometheus_reach_it_from_outside_its_pod(tmp_path: Path) -> None:
    container = container_of(read("sidecar.yml")["Deployment"])
    monitor = read("servicemonitor.yml")
    with sidecar(tmp_path) as ports:
        assert fetch(POD, ports[""], "/healthz")[0] == 0, "the agent's port stands on loopback alone"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert fetch(POD, ports[asked["port"]], asked["path"])[0] == 200
        # What the Prometheus operator makes of the Service and the ServiceMonitor.
        [endpoint], [served] = monitor["ServiceMonitor"]["spec"]["endpoints"], monitor["Service"]["spec"]["ports"]
        assert endpoint["port"] == served["name"]
        job = monitor["Service"]["metadata"]["labels"][monitor["ServiceMonitor"]["spec"]["jobLabel"]]
        scraped = {
            "job_name": job, "metrics_path": endpoint["path"], "scrape_interval": "1s",
            "static_configs": [{"targets": [f"{POD}:{ports[served['targetPort']]}"]}],
        }  # fmt: skip
        (tmp_path / "rules.yml").write_text(yaml.safe_dump(read("prometheusrule.yml")["PrometheusRule"]["spec"]))
        config = {"rule_files": ["rules.yml"], "scrape_configs": [scraped]}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        process = await asyncio.create_subprocess_exec(
            "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(60):
                found: Any = None
                while not (found and found["result"]):
                    await asyncio.sleep(0.2)
                    text = 'up{job="context-proxy"} and on (instance) context_proxy_store_queue'
                    found = await ask(f"http://127.0.0.1:{port}", "/api/v1/query", query=text)
            assert [one["value"][1] for one in found["result"]] == ["1"]
            groups = (await ask(f"http://127.0.0.1:{port}", "/api/v1/rules"))["groups"]
            assert {rule["name"] for group in groups for rule in group["rules"]} >= {"ContextProxyDown"}
        finally:
            process.terminate()
            await process.wait()


def test_the_monitor_selects_the_sidecar_and_no_other_port() -> None:
    deployment, monitor = read("sidecar.yml")["Deployment"], read("servicemonitor.yml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert monitor["Service"]["spec"]["selector"].items() <= labels.items()
    selected = monitor["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= monitor["Service"]["metadata"]["labels"].items()
    [port] = container_of(deployment)["ports"]
    environment = environment_of(container_of(deployment))
    assert str(port["containerPort"]) == environment["CONTEXT_PROXY_METRICS_PORT"]


def test_the_rules_are_the_same_for_every_way_to_run_prometheus(tmp_path: Path) -> None:
    shipped = (SHIPPED / "alerts.yml").read_text()
    assert read("prometheusrule.yml")["PrometheusRule"]["spec"] == yaml.safe_load(shipped)
    assert (CHART / "files" / "alerts.yml").read_text() == shipped
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(read("prometheusrule.yml")["PrometheusRule"]["spec"]))
    done = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_uses_every_value_that_it_has_and_has_every_value_that_it_uses() -> None:
    templates = "".join(file.read_text() for file in sorted((CHART / "templates").iterdir()))
    used = set(re.findall(r"\.Values\.([\w.]+)", templates))
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def has(path: str) -> bool:
        found: Any = values
        for part in path.split("."):
            if not isinstance(found, dict) or part not in found:
                return False
            found = found[part]
        return True

    assert [path for path in sorted(used) if not has(path)] == []
    assert {name for name in values if not any(path.split(".")[0] == name for path in used)} == set()
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_helm(), *words], capture_output=True, text=True, timeout=60, cwd=ROOT)


def rendered(folder: Path, values: dict[str, Any]) -> dict[str, list[Any]]:
    """The chart's documents by kind."""
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("template", "demo", str(CHART), "--values", str(folder / "values.yaml"))
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = {}
    for one in filter(None, yaml.safe_load_all(done.stdout)):
        found.setdefault(one["kind"], []).append(one)
    return found


VALUES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sqlite": {
        "upstream": "https://api.openai.com/v1", "keysSecret": "my-keys",
        "config": "port = 9000\n[limits]\nrequests = 7\n",
        "policies": {"mine.toml": 'name = "mine"\n', "mystages.py": "X = {}  # {{ no template }}\n"},
        "persistence": {"existingClaim": "mine"}, "podAnnotations": {"a": "b"}, "imagePullSecrets": [{"name": "r"}],
        "env": [{"name": "CONTEXT_PROXY_POLICY", "value": "rolling"}], "envFrom": [{"secretRef": {"name": "s"}}],
        "nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}, "metrics": {"port": 9999},
        "prometheusRule": {"enabled": True},
    },
    "postgres": {"replicaCount": 3, "keysSecret": "my-keys", "database": {"existingSecret": "db"}},
}  # fmt: skip


@needs_helm
@pytest.mark.parametrize("name", VALUES)
def test_the_chart_makes_a_deployment_whose_parts_fit_together(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = VALUES[name]
    found = rendered(tmp_path, values)
    [deployment], [service] = found["Deployment"], found["Service"]
    pod = deployment["spec"]["template"]
    container = container_of(deployment)
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {one["targetPort"] for one in service["spec"]["ports"]} == set(ports)
    assert {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "metrics"
    }
    budgets = found.get("PodDisruptionBudget", [])
    assert len(budgets) == (values.get("replicaCount", 1) > 1)
    for budget in budgets:
        assert budget["spec"]["selector"] == deployment["spec"]["selector"]
        assert budget["spec"]["maxUnavailable"] == 1
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == set(volumes)
    made = {one["metadata"]["name"]: one for kind in ("ConfigMap",) for one in found.get(kind, [])}
    assert {one["configMap"]["name"] for one in volumes.values() if "configMap" in one} == set(made)
    assert deployment["spec"]["replicas"] == values.get("replicaCount", 1)
    sqlite = "database" not in values
    assert deployment["spec"]["strategy"]["type"] == ("Recreate" if sqlite else "RollingUpdate")
    assert len(found.get("PersistentVolumeClaim", [])) == (sqlite and "persistence" not in values)
    # The proxy takes this environment as it is, but for the files of the container.
    environment = environment_of(container)
    assert environment["CONTEXT_PROXY_KEYS_DIR"] == ("/keys" if "keysSecret" in values else "/data/keys")
    for variable, volume, folder in (("CONFIG", "config", "/config"), ("POLICIES_DIR", "policies", "/policies")):
        if f"CONTEXT_PROXY_{variable}" in environment:
            data = made[volumes[volume]["configMap"]["name"]]["data"]
            (tmp_path / volume).mkdir()
            for file, text in data.items():
                (tmp_path / volume / file).write_text(text)
            here = environment[f"CONTEXT_PROXY_{variable}"].replace(folder, str(tmp_path / volume), 1)
            environment[f"CONTEXT_PROXY_{variable}"] = here
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    settings = load_settings()
    assert (settings.port, settings.metrics_port) == (ports["http"], ports["metrics"])
    assert settings.metrics_host == "0.0.0.0"
    if "config" in values:
        assert settings.limits.requests == 7
        assert (tmp_path / "policies" / "mystages.py").read_text() == values["policies"]["mystages.py"]
        assert settings.policy == "rolling"


@needs_helm
def test_the_chart_s_monitor_and_rules_are_those_of_the_operator(tmp_path: Path) -> None:
    found = rendered(tmp_path, VALUES["sqlite"])
    [monitor], [rule], [service] = found["ServiceMonitor"], found["PrometheusRule"], found["Service"]
    assert rule["spec"] == yaml.safe_load((SHIPPED / "alerts.yml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {one["name"] for one in service["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "my-keys", "key": "metrics.key"}
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "context-proxy"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


@needs_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicaCount": 2}, "a SQLite file has one writer"),
        ({"database": {"existingSecret": "db"}}, "needs keysSecret"),
        ({"serviceMonitor": {"enabled": True}}, "needs keysSecret"),
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
        ({"replicaCount": 0}, "minimum"),
        ({"upstream": "api.openai.com/v1"}, "does not match pattern"),
        ({"policies": {"mine.sh": ""}}, "mine.sh"),
    ],
)
def test_values_that_cannot_work_are_refused_with_their_reason(
    values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("template", "demo", str(CHART), "--values", str(tmp_path / "values.yaml"))
    assert done.returncode != 0
    assert said in done.stderr


@needs_helm
def test_helm_s_own_check_finds_nothing(tmp_path: Path) -> None:
    for name, values in VALUES.items():
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
        done = helm("lint", "--strict", str(CHART), "--values", str(tmp_path / "values.yaml"))
        assert done.returncode == 0, (name, done.stdout)
