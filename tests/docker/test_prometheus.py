"""The shipped Prometheus config, alert rules and Grafana dashboard, tried with a real Prometheus and a real proxy."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.cli.key import write_keys
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, send_reply

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "docker" / "prometheus"
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "context-proxy.json"

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed (Debian: apt-get install prometheus)"
)


def test_the_rules_are_right_and_go_off_when_they_should() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=SHIPPED, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_shipped_alert_has_a_test() -> None:
    named = set(re.findall(r"- alert: (\w+)", (SHIPPED / "alerts.yml").read_text()))
    tried = set(re.findall(r"^        alertname: (\w+)", (SHIPPED / "alerts_test.yml").read_text(), re.MULTILINE))
    assert named == tried


def test_promtool_accepts_the_shipped_config(tmp_path: Path) -> None:
    (tmp_path / "metrics.key").write_text("secret")
    shutil.copy(SHIPPED / "alerts.yml", tmp_path)
    config = tmp_path / "prometheus.yml"
    config.write_text((SHIPPED / "prometheus.yml").read_text().replace("/keys/", f"{tmp_path}/"))
    done = subprocess.run(["promtool", "check", "config", str(config)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def queries(span: str = "5m", kind: str = "") -> Iterator[tuple[str, str]]:
    """(panel and letter, PromQL) of each of the dashboard's, its variables filled in. span: its range. kind: of the
    panels; empty: all."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()) if kind in ("", panel["type"]) else ():
            text: str = target["expr"]
            for name, value in (("$__rate_interval", "20s"), ("$__range", span), ("$job", ".*"), ("$instance", ".*")):
                text = text.replace(name, value)
            assert "$" not in text
            yield f"{panel['title']} {target['refId']}", text


def datasources(found: Any) -> Iterator[Any]:
    """Each data source that is named anywhere in the dashboard."""
    if isinstance(found, dict):
        for name, value in found.items():
            if name == "datasource":
                yield value["uid"]
            else:
                yield from datasources(value)
    elif isinstance(found, list):
        for value in found:
            yield from datasources(value)


def test_the_dashboard_can_be_imported_with_any_data_source() -> None:
    tree = json.loads(DASHBOARD.read_text())
    assert set(datasources(tree)) == {"${datasource}"}
    assert [(v["type"], v["query"]) for v in tree["templating"]["list"][:1]] == [("datasource", "prometheus")]
    assert [p["title"] for p in tree["panels"] if p["type"] == "row"] == [
        "Money", "Provider's cache", "Quality", "Latency", "Health",
    ]  # fmt: skip
    assert len({p["id"] for p in tree["panels"]}) == len(tree["panels"])


def test_a_single_figure_is_asked_for_once() -> None:
    stats = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] == "stat"]
    # Over a range, the newest figure of an idle proxy would be that of the last request, from hours ago.
    assert stats
    assert all(target["instant"] and not target["range"] for panel in stats for target in panel["targets"])


def variables() -> Iterator[str]:
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        yield variable["name"]


PRICED = '[models."priced"]\nwindow = 100000\ninput = 2.0\noutput = 10.0\nmin = 1\nblock = 1\n'


async def traffic(proxy: RunningProxy) -> None:
    """Requests of which every panel has something to show."""
    history: list[dict[str, Any]] = []
    for n in range(8):
        history.append({"role": "user", "content": f"Step {n}. " + "word " * 1000})
        answer = await proxy.post({"model": "priced", "messages": history})
        history.append(answer.message)
    await proxy.post({"model": "priced", "messages": history[:1]}, b"x-context-off: 1")
    await proxy.post({"model": "broken", "messages": history[:1]})


async def fails(request: Any, there: Any) -> None:
    await send_reply(there, b"500 Internal Server Error", b"{}")


@asynccontextmanager
async def prometheus(proxy: RunningProxy, folder: Path, *more: str) -> AsyncIterator[str]:
    """A Prometheus with the shipped config, but for who is scraped and how often; its URL. more: further flags."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (SHIPPED / "prometheus.yml").read_text().replace("/keys/", f"{folder}/")
    text = text.replace("15s", "1s").replace("proxy:8080", f"127.0.0.1:{proxy.port}")
    (folder / "metrics.key").write_text("no key is asked for on loopback")
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(SHIPPED / "alerts.yml", folder)
    process = await asyncio.create_subprocess_exec(
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *more, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def ask(url: str, path: str, **query: str) -> Any:
    full = f"{url}{path}?{urllib.parse.urlencode(query)}"

    def fetch() -> Any:
        try:
            with urllib.request.urlopen(full, timeout=5) as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return None

    return await asyncio.to_thread(fetch)


@pytest.mark.slow
async def test_prometheus_scrapes_the_proxy_and_every_query_of_the_dashboard_has_data(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(PRICED)
    model = ScriptedModel("Well, this is an answer.")
    model.usage = {
        "prompt_tokens": 900, "completion_tokens": 50, "total_tokens": 950,
        "prompt_tokens_details": {"cached_tokens": 300},
    }  # fmt: skip
    bad = ScriptedModel(fails)
    async with run_upstream(model) as upstream, run_upstream(bad) as broken:
        targets = {
            "main": {"base_url": f"http://127.0.0.1:{upstream.port}/v1", "models": ["priced"]},
            "bad": {"base_url": f"http://127.0.0.1:{broken.port}/v1", "models": ["broken"]},
        }
        own: dict[str, Any] = {"upstreams": targets, "policy": "rolling", "models_file": str(tmp_path / "models.toml")}
        async with run_proxy(upstream.port, **own) as proxy:
            # This traffic asks no helper, and its panel needs a line to draw.
            proxy.metrics.helper_total.labels(kind="summary", outcome="kept").inc(0)
            await traffic(proxy)
            async with prometheus(proxy, tmp_path) as url:
                empty: dict[str, str] = {"": "not asked yet"}
                found: dict[str, Any] = {}
                async with asyncio.timeout(60):
                    while empty:
                        await traffic(proxy)
                        await asyncio.sleep(0.5)
                        if await ask(url, "/api/v1/query", query="up") is None:
                            continue
                        found = {name: (await ask(url, "/api/v1/query", query=text)) for name, text in queries()}
                        empty = {name: dict(queries())[name] for name, data in found.items() if not data["result"]}
                        left = found["Tokens left out A"]["result"]
                        if left and float(left[0]["value"][1]) <= 0:  # of the first requests nothing leaves
                            empty["Tokens left out A"] = "nothing yet"
                        print("without data:", list(empty))  # shown where the time runs out
                targets_up = (await ask(url, "/api/v1/targets"))["activeTargets"]
                assert [t["health"] for t in targets_up] == ["up"]
                values = [float(s["value"][1]) for s in found["Tokens left out A"]["result"]]
                assert 0 < values[0] < 1
                async with asyncio.timeout(60):  # until there has been no request for the range of the dashboard
                    requests = dict(queries("3s"))["Requests A"]
                    while (await ask(url, "/api/v1/query", query=f"{requests} == 0"))["result"] == []:
                        await asyncio.sleep(0.5)
                for name, text in queries("3s", "stat"):
                    idle = (await ask(url, "/api/v1/query", query=text))["result"]
                    assert all(math.isfinite(float(one["value"][1])) for one in idle), f"{name} of an idle proxy"
                assert list(variables()) == ["datasource", "job", "instance"]
                assert set(await ask(url, "/api/v1/label/job/values")) == {"context-proxy"}


async def test_s8_prometheus_asks_for_the_password_that_the_first_start_made(tmp_path: Path) -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    (flag,) = re.findall(r'"(--web\.config\.file=/keys/)web\.yml"', compose)
    write_keys(tmp_path, "default")
    password = (tmp_path / "prometheus.password").read_text()

    web = f"{flag.replace('/keys/', f'{tmp_path}/')}web.yml"
    async with (
        run_upstream(ScriptedModel()) as upstream,
        run_proxy(upstream.port) as proxy,
        prometheus(proxy, tmp_path, web) as url,
    ):

        def status(word: str | None) -> int:
            asked = urllib.request.Request(f"{url}/api/v1/query?query=up")
            if word is not None:
                asked.add_header("authorization", "Basic " + b64encode(f"prometheus:{word}".encode()).decode())
            try:
                with urllib.request.urlopen(asked, timeout=5) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refused:
                return refused.code
            except OSError:
                return 0  # it does not listen yet

        async with asyncio.timeout(60):
            while (found := await asyncio.to_thread(status, password)) in (0, 503):  # 503: it is not ready yet
                await asyncio.sleep(0.1)
        assert found == 200
        assert await asyncio.to_thread(status, None) == 401
        assert await asyncio.to_thread(status, "wrong") == 401
