from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest
from msgspec.structs import replace as changed
from rich.console import Console

from proxy.context.policy import Policy
from proxy.replay import table
from proxy.replay.play import Contender, ConversationResult
from proxy.replay.report import ReplayReport, ReportBuilder
from proxy.replay.table import find_cheapest, print_report
from tests.replay.test_report import MATCH, PART, WHOLE, make_builder

PRICES = ((1.25, 0.1), (1.0, 0.5), (1.0, 0.25), (1.0, 0.1))
NAMES = ("thrifty", "hierarchical:when_it_pays", "rolling:over_budget")


def print_to_text(report: ReplayReport, width: int) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def report() -> ReplayReport:
    """Policies with long names, four price pairs, large figures."""
    policies = tuple(Contender(name, Policy(name.partition(":")[0])) for name in NAMES)
    match = replace(MATCH, contenders=(Contender("nothing"), *policies), prices=PRICES)
    made = ReportBuilder(match)
    whole = replace(WHOLE, prompt=190_267_726, cached=185_538_816, peak=158_753, fetching=[0.0] * 4)
    part = replace(PART, prompt=90_267_726, cached=85_538_816, peak=58_753, fetching=[1e5] * 4)
    made.add_result(
        ConversationResult("entire-cli.jsonl", (whole, part, part, part), {"results": whole, "messages": whole})
    )
    return made.build_report()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_nothing_is_cut_off_however_wide_the_terminal_is(width: int) -> None:
    text = print_to_text(report(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for wanted in ("1.25/0.1", "1/0.25", "190.3M", "97.5%", "158.8k", "0.800", "25.0%", "bound: results"):
        assert wanted in text, wanted
    # A name may be folded, and then goes on in the line below.
    assert "hierarchical:when_it_pays" in text or width == 80


def test_a_wide_terminal_has_two_tables_and_a_narrow_one_three() -> None:
    assert print_to_text(report(), 120).count("policy ") == 2
    assert print_to_text(report(), 80).count("policy ") == 3


def test_the_table_begins_with_what_was_played() -> None:
    text = print_to_text(make_builder("a.jsonl", "b.jsonl").build_report(), 120)
    assert "2 conversations, 8 requests: a.jsonl (1), b.jsonl (1)" in text
    assert "model gpt-x*, window 1,000, policies decide by 1.25/0.1 (write/read), " in text
    assert "(write/read), cache cold after 5 min, tokens by estimate" in text


def test_costs_are_in_relation_to_doing_nothing() -> None:
    text = print_to_text(make_builder().build_report(), 120)
    assert "0.29" in text  # 165 of 560
    assert "0.47" in text  # and 100 for fetching again


def test_refusals_faults_and_unasked_questions_are_reported() -> None:
    text = print_to_text(make_builder().build_report(), 120)
    assert "mine:always: 1 plans refused, 3 failed: ValueError: x (3); rule W1 (1)" in text
    assert "mine:always: 2 questions to a helper model are neither asked nor counted." in text


def test_the_policy_that_pays_is_the_cheapest_of_those_that_lose_little() -> None:
    found = make_builder().build_report()
    assert (best := find_cheapest(found)) is not None
    assert best.name == "nothing"  # the others keep 0.8 of the lines
    whole = changed(found.entries[1].total, lines=found.entries[0].total.lines)
    entries = [found.entries[0], changed(found.entries[1], total=whole), found.entries[2]]
    better = changed(found, entries=entries)
    assert (best := find_cheapest(better)) is not None
    assert best.name == "mine:always"
    assert "with 95% of the lines kept: mine:always, 0.47." in print_to_text(better, 120)
    assert find_cheapest(changed(found, entries=[])) is None


def test_where_nothing_was_wanted_nothing_is_named_as_the_best() -> None:
    text = print_to_text(ReportBuilder(MATCH).build_report(), 120)
    assert " -" in text
    assert "cannot be told here" in text
    assert "Least effective cost" not in text


def test_the_last_sentence_has_dollars_where_the_price_is_known() -> None:
    plain = make_builder().build_report()
    told = table.summarize(plain)
    assert "to a model whose price is not known" in told
    assert "$" not in told
    priced = table.summarize(msgspec.structs.replace(plain, input=1_000_000.0))
    nothing = plain.entries[0].total.cost[plain.prices[0]].effective
    assert f"to gpt-x* cost ${nothing:,.2f} as they were." in priced
    best = table.find_cheapest(plain)
    assert best is not None
    if best is plain.entries[0]:
        assert "Nothing here is cheaper" in priced
    else:
        saved = nothing - best.total.cost[plain.prices[0]].effective
        assert f"With {best.name} you would save about ${saved:,.2f}" in priced
