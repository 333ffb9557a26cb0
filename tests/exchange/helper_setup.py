"""A policy whose stage asks, a helper on a socket of its own, and a proxy between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from proxy.context.plan import Ask, Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import Script, run_upstream, wait_until
from tests.scripted_model import ScriptedModel

SESSION = b"x-context-session: a"
LONG = "Please read all of it. " * 20

EXTRACT = "What was said first, in short."
"""The text of the stage while it has no answer."""


@dataclass(frozen=True, slots=True)
class Condense(Stage):
    """A stage that puts a summary in place of the first message, a helper's where there is one."""

    keep: str = ""
    longest: int = 200
    now: bool = False
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """The first message, once another prompt follows it."""
        if len(view.messages) < 3:
            return
        text = view.branch.helper_answers.get(self._ask(view).id, EXTRACT)
        yield Proposal(0, "text", "condense", "old", 10, text=text)

    def asks(self, view: View) -> Iterable[Ask]:
        """A summary of the first message, from the first request on."""
        yield self._ask(view)

    def _ask(self, view: View) -> Ask:
        prompt = "Summarise: " + view.messages[0].text
        keep = tuple(self.keep.split())
        return Ask("summary", prompt, (view.keys[0],), keep, self.longest, self.now)


@dataclass
class ProxyWithHelper:
    """The proxy, its model and its helper."""

    proxy: RunningProxy
    model: ScriptedModel
    helper: ScriptedModel

    def told(self, outcome: str, kind: str = "summary") -> float:
        """Number of questions with this outcome."""
        return self.proxy.count("helper_total", kind=kind, outcome=outcome)


@asynccontextmanager
async def run_proxy_with_helper(
    folder: Path,
    *answers: Any,
    stage: str = "",
    helper: dict[str, Any] | None = None,
    small: dict[str, Any] | None = None,
    mode: str = "rewrite",
    **tree: Any,
) -> AsyncIterator[ProxyWithHelper]:
    """All three running. answers: the helper's. stage: settings of the stage, as TOML. helper, small: settings of the
    helper and of its upstream."""
    write_policy(folder, stage, mode)
    model, second = ScriptedModel("Well."), ScriptedModel(*answers)
    async with run_upstream(model) as upstream, run_upstream(second) as beside:
        made = make_helper_settings(folder, upstream.port, beside.port, {"timeout_s": 5.0, **(helper or {})})
        made["upstreams"]["small"].update(small or {})
        async with run_proxy(0, **made, **tree) as proxy:
            yield ProxyWithHelper(proxy, model, second)


def write_policy(folder: Path, stage: str = "", mode: str = "rewrite") -> None:
    """The policy `condense`, whose one stage is the one above."""
    head = f'name = "condense"\nmode = "{mode}"\nschedule = "always"\nask = "never"\n'
    (folder / "condense.toml").write_text(f'{head}[[stages]]\nuse = "{__name__}:Condense"\n{stage}\n')


def make_helper_settings(folder: Path, model: int, helper: int, limits: dict[str, Any]) -> dict[str, Any]:
    """Settings for a model and a helper on these ports."""
    here = "http://127.0.0.1"
    return {
        "policy": "condense",
        "policies_dir": str(folder),
        "upstreams": {
            "main": {"base_url": f"{here}:{model}/v1"},
            "small": {"base_url": f"{here}:{helper}/v1", "models": ()},
        },
        "helper": {"upstream": "small", "model": "demo", **limits},
    }


@asynccontextmanager
async def run_proxy_on_file(
    folder: Path, script: Script, helper: Script, limits: dict[str, Any]
) -> AsyncIterator[RunningProxy]:
    """A proxy on a file, so that another one can go on where it ended."""
    write_policy(folder)
    async with run_upstream(script) as upstream, run_upstream(helper) as beside:
        tree = make_helper_settings(folder, upstream.port, beside.port, limits)
        async with run_proxy(0, **tree, db=str(folder / "db" / "store.sqlite3")) as proxy:
            yield proxy


async def send_texts(proxy: ProxyWithHelper, *texts: str, **more: Any) -> Agent:
    """An agent that says these things one after the other, and lets the helper end each time."""
    agent = Agent(proxy.proxy, (SESSION,), **more)
    for text in texts:
        await agent.say(text)
        await wait_for_helper(proxy.proxy)
    return agent


async def wait_for_helper(proxy: RunningProxy) -> None:
    asking = proxy.app.services.helper_queue
    assert asking is not None
    await wait_until(lambda: not len(asking))
