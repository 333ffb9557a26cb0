"""The pictures of the README and of the dashboard's page: the strip of a recorded conversation, as it came and as
`thrifty` sends it, and the overview of a running proxy.

    python -m tests.documentation.pictures RECORDING.jsonl ID
    python -m tests.documentation.pictures --overview http://127.0.0.1:8090

Plays the conversation through a running proxy, request by request, against an upstream that answers as was recorded,
once under `passthrough` and once under `thrifty`. Writes strip-before.png and strip-after.png in docs/pictures/, and
prints the tokens of both prompts. Needs Chromium.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.documentation.blocks import ROOT
from tests.web.dashboard.screen import CHROMIUM, FLAGS, ProxyWithKeys, open_page, run_proxy_with_keys

PICTURES = {"passthrough": "strip-before.png", "thrifty": "strip-after.png"}
WIDTH = 900
OVERVIEW_WIDTH = 860
EDGE = 12


def recorded(file: Path, name: str) -> dict[str, Any]:
    """The conversation of that id."""
    found = (json.loads(line) for line in file.read_text("utf-8").splitlines())
    return next(one for one in found if one["id"] == name)


def play(proxy: ProxyWithKeys, run: dict[str, Any], policy: str, model: str) -> None:
    """Every request of the conversation; the upstream's answer is the recorded one."""
    messages = run["messages"]
    tools = {"tools": run["tools"]} if run.get("tools") else {}
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        proxy.model.answers[:] = [{"content": None, **message}]
        body = {"model": model, "messages": messages[:at], **tools}
        headers = {"x_context_session": policy, "x_context_policy": policy}
        status, answer = proxy.ask("POST", "/v1/chat/completions", body, key="cp-data", **headers)
        assert status == 200, answer


def take_overview(base: str) -> None:
    """The tiles and the whole chart of the first page."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = chromium.new_page(viewport={"width": OVERVIEW_WIDTH, "height": 900})
        page.goto(f"{base}/dashboard/")
        page.wait_for_selector(".overview-chart .u-over", timeout=60_000)
        top, bottom = (page.locator(one).first.bounding_box() for one in (".tiles", ".overview-chart .chart"))
        assert top is not None
        assert bottom is not None
        height = bottom["y"] + bottom["height"] - top["y"] + 2 * EDGE
        clip = {"x": 0.0, "y": top["y"] - EDGE, "width": float(OVERVIEW_WIDTH), "height": height}
        page.screenshot(path=ROOT / "docs" / "pictures" / "overview.png", clip=clip)  # type: ignore[arg-type]
        chromium.close()


def main() -> None:
    """Play it twice, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="conversations, one a line")
    parser.add_argument("id", nargs="?", help="the conversation's id in it")
    parser.add_argument("--overview", help="take the first page's picture of the proxy at this address")
    parser.add_argument("--model", default="claude-sonnet-4-5", help="whose prices and window")
    args = parser.parse_args()
    if args.overview:
        take_overview(args.overview)
        return
    run = recorded(args.file, args.id)
    with (
        tempfile.TemporaryDirectory() as folder,
        run_proxy_with_keys(Path(folder)) as proxy,
        sync_playwright() as playwright,
    ):
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        for policy, name in PICTURES.items():
            play(proxy, run, policy, args.model)
            with open_page(chromium, proxy, viewport={"width": WIDTH, "height": 900}, device_scale_factor=2) as screen:
                screen.go(f"#/s/acme/{policy}", ".strip .bar")
                top, bottom = (screen.page.locator(one).first.bounding_box() for one in (".legend", ".strip"))
                assert top is not None
                assert bottom is not None
                height = bottom["y"] + bottom["height"] - top["y"] + 2 * EDGE
                clip = {"x": 0.0, "y": top["y"] - EDGE, "width": float(WIDTH), "height": height}
                screen.page.screenshot(path=ROOT / "docs" / "pictures" / name, clip=clip)  # type: ignore[arg-type]
                stats = proxy.get(f"/sessions/{policy}/stats")
                print(f"{name}: {stats['sent']:,} of {stats['tokens']:,} tokens, {stats['shortened']} shortened")
        chromium.close()


if __name__ == "__main__":
    main()
