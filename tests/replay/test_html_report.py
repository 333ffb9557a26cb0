from __future__ import annotations

import json
import re
from dataclasses import replace

from proxy.context.policy import Policy
from proxy.replay.html_report import SCRIPT, SECURITY_POLICY, conclude, render_html
from proxy.replay.play import Contender, ConversationResult
from proxy.replay.report import ReportBuilder
from proxy.web.dashboard.static_files import DashboardFiles
from tests.replay.test_report import MATCH, PART, WHOLE, make_builder


def test_the_file_has_every_policy_at_every_price_and_asks_for_nothing() -> None:
    report = make_builder().build_report()
    page = render_html(report)
    assert page.count("<td>mine:always</td>") == len(report.prices) == 2
    assert f'content="{SECURITY_POLICY}"' in page
    assert not re.search(r"<(link|img|script)[^>]* (src|href)=", page)
    found = re.search(r'id="figures">(.*?)</script>', page)
    assert found is not None
    figures = json.loads(found[1])
    assert figures["1.25/0.1"]["names"] == [entry.name for entry in report.entries]
    assert figures["1.25/0.1"]["cost"][0] == 1.0
    library = DashboardFiles().contents["uPlot.iife.min.js"].decode()
    assert page.count(library) == 1
    assert page.count(SCRIPT) == 1


def test_names_from_recordings_and_policies_are_text() -> None:
    name = "</script><b>x"
    made = ReportBuilder(replace(MATCH, contenders=(Contender("nothing"), Contender(name, Policy("p")))))
    made.add_result(ConversationResult("<i>a.jsonl", (WHOLE, PART), {}))
    page = render_html(made.build_report())
    assert name not in page
    assert "<i>a.jsonl" not in page
    assert "&lt;i&gt;a.jsonl" in page


def test_the_conclusion_names_the_cheapest_that_keeps_enough() -> None:
    good = replace(PART, lines_kept=5, atoms_kept=10, fetching=[0.0, 0.0])
    made = ReportBuilder(replace(MATCH, contenders=(Contender("nothing"), Contender("mine", Policy("mine")))))
    made.add_result(ConversationResult("a", (WHOLE, good), {}))
    said = conclude(made.build_report())
    assert re.match(r"mine costs least: \d+\.\d % less than doing nothing at 1\.25/0\.1\. It kept 100\.0 % of", said)
    assert conclude(make_builder().build_report()).startswith("Doing nothing costs least")
    silent = replace(WHOLE, atoms=0, atoms_kept=0, lines=0, lines_kept=0)
    made = ReportBuilder(replace(MATCH, contenders=(Contender("nothing"),)))
    made.add_result(ConversationResult("a", (silent,), {}))
    assert "do not show" in conclude(made.build_report())
