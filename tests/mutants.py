"""Faults of the hot path, planted one at a time: each has to turn the tests red that guard what it breaks.

`make mutants` tries them all, each in a copy of the tree of its own. It ends with an error where one lives: there the
tests would not have told of the same fault made by mistake. The file of tests beside a fault says who guards it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("proxy", "tests", "config", "docker", "docs")
"""Folders that tests read; the files beside them are copied as well."""
LEFT_OUT = shutil.ignore_patterns(".*", "*.egg-info")
PASSED, FAILED = 0, 1
"""The exit codes of pytest after a run of tests. Any other is an error of the run, and says nothing about the fault."""
WAIT_S = 180


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. broken: the promise. text: stands once in the file, and `instead` takes its place. tests: files, or
    tests in them (`file::test`), of which one at least has to fail."""

    broken: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]


MUTANTS = (
    # Whose conversation it is.
    Mutant(
        "a message's key covers all before it",
        "proxy/chat/chain.py",
        "at = derive_next_key(at, message.digest)",
        "at = derive_next_key(derive_root_key(tenant), message.digest)",
        ("tests/chat/test_chain.py::test_a_key_covers_all_that_came_before_it",),
    ),
    Mutant(
        "two tenants never share a key",
        "proxy/chat/chain.py",
        'b"context-proxy/1:" + tenant.encode()',
        'b"context-proxy/1:"',
        ("tests/chat/test_chain.py::test_chains_of_two_tenants_never_meet",),
    ),
    Mutant(
        "the same request again is a branch of its own",
        "proxy/sessions/locate.py",
        'return "retry" if retry or last.failed else "twin"',
        'return "retry"',
        ("tests/sessions/test_locate.py::test_a_retry_stays_on_its_branch_and_the_same_request_again_is_a_twin",),
    ),
    Mutant(
        "a failure is forgotten when the retry has begun",
        "proxy/exchange/exchange_rows.py",
        "LastRequest(turn.tip_key, exchange=turn.id",
        "LastRequest(turn.tip_key, failed=before.failed, exchange=turn.id",
        (
            "tests/sessions/test_locate.py::test_while_the_retry_of_a_failed_attempt_is_answered_the_same_again_is_a_twin",
        ),
    ),
    # Calls and their results.
    Mutant(
        "a step has all results of its calls",
        "proxy/chat/group.py",
        "while end < len(messages) and (messages[end].is_result",
        "if end < len(messages) and (messages[end].is_result",
        ("tests/chat/test_group.py",),
    ),
    Mutant(
        "a step leaves whole or not at all",
        "proxy/context/repair.py",
        'return any(action in ("gone", "text_only") for action in actions)',
        "return False",
        ("tests/context/test_proposals.py",),
    ),
    # What a strict upstream accepts.
    Mutant(
        "no result without its call",
        "proxy/context/validate.py",
        'wrong.setdefault("W1", f"message {n}: a tool result without its call")',
        "pass",
        ("tests/context/test_validate.py",),
    ),
    Mutant(
        "no call without its result at the end",
        "proxy/context/validate.py",
        "if any(self._waiting.values()):",
        "if not self._previous:",
        ("tests/context/test_validate.py",),
    ),
    Mutant(
        "the client's words stay in what is kept",
        "proxy/context/validate.py",
        "if not out.text.startswith(message.text):",
        "if not out.text:",
        ("tests/context/test_validate.py",),
    ),
    # When edits are made.
    Mutant(
        "a batch is made when its rent has reached its price",
        "proxy/context/schedule.py",
        "if gained > 0 and left >= 0 and left > best_left",
        "if gained > 0 and left > best_left - price",
        ("tests/context/test_schedule.py",),
    ),
    Mutant(
        "a batch's price has what is written to the cache again",
        "proxy/context/schedule.py",
        "price = w * (after - cached) + r * cached - unedited_price",
        "price = r * (after - cached) + r * cached - unedited_price",
        ("tests/context/test_schedule.py",),
    ),
    Mutant(
        "a batch loses no more than the limit",
        "proxy/context/schedule.py",
        "max(0.0, price) + limit.chance * fetching > limit.most",
        "max(0.0, price) > limit.most",
        ("tests/context/test_schedule.py",),
    ),
    Mutant(
        "a text is exchanged for a shorter one alone",
        "proxy/context/schedule.py",
        "proposal.after < edit.after",
        "proposal.after <= edit.after",
        ("tests/context/test_proposals.py",),
    ),
    # What the client sees of an answer.
    Mutant(
        "a heading that arrives in pieces is held back",
        "proxy/stream/block_filter.py",
        "if state_block.may_be_heading(head, self._headings):",
        "if state_block.find_heading(head, self._headings):",
        (
            "tests/stream/test_block_filter.py::test_the_filter_gives_what_split_gives_whole_by_character_and_cut_anywhere",
        ),
    ),
    Mutant(
        "a shorter fence does not close a code block",
        "proxy/stream/block_filter.py",
        "elif self._fence_length >= self._fence[1]:",
        "else:",
        ("tests/stream/test_block_filter.py::test_a_fence_is_closed_by_one_as_long_and_no_shorter_one",),
    ),
    Mutant(
        "an answer with calls of the client's ends the rounds",
        "proxy/stream/completions_rewriter.py",
        "self.goes_on = not call_filter.shown_count",
        "self.goes_on = True",
        ("tests/stream/test_tool_call_filter.py::test_the_client_gets_its_own_calls_and_nothing_else",),
    ),
    Mutant(
        "the client's calls are contiguous",
        "proxy/stream/tool_call_filter.py",
        "own = call.index if not self.hidden_count and not self._first_index else None",
        "own = call.index",
        ("tests/stream/test_tool_call_filter.py::test_the_client_gets_its_own_calls_and_nothing_else",),
    ),
    Mutant(
        "calls of one answer are bounded",
        "proxy/stream/tool_call_filter.py",
        "if len(self._calls) >= MAX_CALLS or self._room_bytes < 0:",
        "if self._room_bytes < 0:",
        (
            "tests/stream/test_tool_call_filter_ends.py::test_the_first_4096_calls_are_distinguished_and_further_ones_dropped",
        ),
    ),
    # What is acknowledged is stored.
    Mutant(
        "an answer waits for the store",
        "proxy/exchange/record_outcome.py",
        "await waiter",
        "await asyncio.sleep(0)",
        ("tests/exchange/test_record_outcome.py::test_an_answer_ends_when_the_store_has_it",),
    ),
    Mutant(
        "rows that could not be stored are not acknowledged",
        "proxy/store/write_queue.py",
        "if error is None:\n            if not item.future.done():",
        "if error is None or self._open:\n            if not item.future.done():",
        ("tests/store/test_write_queue.py::test_a_failed_item_tells_its_cause",),
    ),
    Mutant(
        "what a group of writes had no time for is not acknowledged",
        "proxy/store/writer.py",
        "self._settle_first(self._commit(batch), None)",
        "self._settle_first(len(batch), self._commit(batch) and None)",
        ("tests/store/test_writer.py::test_what_a_group_has_no_time_for_is_written_with_the_next",),
    ),
    # The budget.
    Mutant(
        "the answer's room is kept free",
        "proxy/context/fit.py",
        "limit = window - count_answer_tokens(request, model, window)",
        "limit = window",
        ("tests/context/test_token_budget.py",),
    ),
    Mutant(
        "the tool definitions count",
        "proxy/context/fit.py",
        "return view.prefix_tokens + tool_tokens + view.insert_tokens + sum(",
        "return tool_tokens + view.insert_tokens + sum(",
        ("tests/context/test_pipeline_budget.py::test_tool_definitions_count_towards_the_budget",),
    ),
    # Secrets, and who is let in.
    Mutant(
        "a key that arrives in two pieces is blanked",
        "proxy/upstream/headers.py",
        "for form in self._forms:",
        "for form in self._forms[:0]:",
        ("tests/upstream/test_headers.py::test_a_secret_is_redacted_however_a_body_is_cut_and_the_length_stays",),
    ),
    Mutant(
        "our headers go no further",
        "proxy/upstream/headers.py",
        "elif name not in dropped and not name.startswith(PROXY_PREFIX):",
        "elif name not in dropped:",
        (
            "tests/upstream/test_headers.py::test_h3_end_to_end_headers_reach_upstream_unchanged_in_order_and_with_duplicates",
        ),
    ),
    Mutant(
        "a key opens its own plane alone",
        "proxy/web/auth.py",
        "if key.plane not in planes:",
        "if not planes:",
        ("tests/web/test_auth.py::test_a_key_opens_its_own_plane_alone",),
    ),
    Mutant(
        "a reader's key changes nothing",
        "proxy/web/routes.py",
        'reads = extra.get(PLANE_KEY) == "read" and method in ("GET", "HEAD")',
        'reads = extra.get(PLANE_KEY) == "read"',
        ("tests/web/test_routes.py",),
    ),
    # What it costs.
    Mutant(
        "a token is paid for as written or as served",
        "proxy/context/models.py",
        "return self.w * (prompt - cached) + self.r * cached",
        "return self.w * prompt + self.r * cached",
        ("tests/context/test_models.py",),
    ),
    Mutant(
        "an hour in the cache costs more than five minutes",
        "proxy/context/prices.py",
        "+ model.w * (written - long) + w_long * long",
        "+ model.w * written",
        ("tests/context/test_prices.py",),
    ),
    Mutant(
        "what was not sent is billed by the provider's count",
        "proxy/exchange/cost.py",
        "factor = prompt / max(sent, 1)",
        "factor = 1.0",
        ("tests/exchange/test_cost.py::test_a_shortened_prompt_is_compared_with_the_client_s_own_and_its_cache",),
    ),
    Mutant(
        "a cache that has expired is cold",
        "proxy/context/build_view.py",
        "return state.sent_at is None or now - state.sent_at > model.ttl_s",
        "return state.sent_at is None",
        ("tests/context/test_build_view.py",),
    ),
    # Pings that keep a cache warm.
    Mutant(
        "a request ends a ping of its branch that is under way",
        "proxy/exchange/handler.py",
        "        services.cache_pings.end([turn.located.branch.id])\n",
        "        pass\n",
        ("tests/exchange/test_cache_keep_alive.py::test_a_request_cancels_a_ping_under_way_before_it_is_answered",),
    ),
    Mutant(
        "no ping begins once the proxy is to stop",
        "proxy/web/app.py",
        "        self.services.cache_pings.close()\n        self.services.event_bus.close()",
        "        self.services.event_bus.close()",
        ("tests/exchange/test_cache_keep_alive.py::test_no_ping_begins_once_the_proxy_is_to_stop",),
    ),
    Mutant(
        "without the proxy a cache that pings kept warm would be cold",
        "proxy/exchange/cost.py",
        "served = 0 if meter.kept_warm else",
        "served = 0 if False else",
        ("tests/exchange/test_cache_keep_alive.py::test_pings_are_paid_and_would_not_be_without_the_proxy",),
    ),
)


def misfits(root: Path, mutants: Iterable[Mutant] = MUTANTS) -> list[str]:
    """The faults that cannot be planted any more, a line each: the code has moved on, and they have to follow."""
    found = []
    for one in mutants:
        path = root / one.file
        times = path.read_text().count(one.text) if path.is_file() else 0
        missing = [test for test in one.tests if not _has(root, test)]
        if times != 1:
            found.append(f"{one.file} has this {times} times, not once: {one.text}")
        if not one.tests or missing:
            found.append(f"{one.broken}: no test {', '.join(missing) or 'is named'}")
    return found


def _has(root: Path, test: str) -> bool:
    """True if there is such a test."""
    file, _, name = test.partition("::")
    path = root / file
    return path.is_file() and (not name or f"def {name}(" in path.read_text())


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of the tests with a fault planted; None for the unchanged code."""

    tests: tuple[str, ...]
    mutant: Mutant | None
    code: int
    seconds: float
    output: str

    @property
    def as_wanted(self) -> bool:
        """Red with a fault, green without."""
        return self.code == (PASSED if self.mutant is None else FAILED)

    @property
    def told(self) -> str:
        """One line on it."""
        if self.mutant is None:
            word = "green" if self.as_wanted else f"NOT GREEN (pytest ended with {self.code})"
            return f"{word:6} {self.seconds:5.1f} s  all {len(self.tests)} tests without a fault"
        words = {FAILED: "red", PASSED: "LIVES"}
        word = words.get(self.code, f"NO VERDICT (pytest ended with {self.code})")
        return f"{word:6} {self.seconds:5.1f} s  {self.mutant.broken}: {self.mutant.file} by {' '.join(self.tests)}"


def attempt(root: Path, tests: tuple[str, ...], mutant: Mutant | None = None) -> Trial:
    """Run the tests in a copy of the tree."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for path in root.iterdir():
            if path.is_file():
                shutil.copy2(path, tree)
            elif path.name in COPIED:
                shutil.copytree(path, tree / path.name, ignore=LEFT_OUT)
        if mutant is not None:
            _plant(tree / mutant.file, mutant)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=short", *tests]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        try:
            ended = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Trial(tests, mutant, -1, time.monotonic() - began, f"no end after {WAIT_S} s")
    return Trial(tests, mutant, ended.returncode, time.monotonic() - began, ended.stdout + ended.stderr)


def _plant(path: Path, mutant: Mutant) -> None:
    text = path.read_text()
    if text.count(mutant.text) != 1:
        raise ValueError(f"{mutant.file} does not have this once: {mutant.text}")
    path.write_text(text.replace(mutant.text, mutant.instead))
    # Compiled code is told to be old by the second in which its source was written, and by its length.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def survey(root: Path, mutants: Sequence[Mutant], several: int) -> list[Trial]:
    """Try them all, so many at once, and tell of each. The tests are run without a fault first: what is red anyway
    shows nothing."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    jobs = [partial(attempt, root, tests), *(partial(attempt, root, mutant.tests, mutant) for mutant in mutants)]
    found = []
    with ThreadPoolExecutor(several) as pool:
        for trial in pool.map(lambda job: job(), jobs):
            print(trial.told, flush=True)
            found.append(trial)
    return found


def main() -> int:
    """Ends with 1 where a fault lives, or where there is no telling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only faults that have one of these in their promise or file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="so many at once")
    asked = parser.parse_args()
    chosen = [
        one for one in MUTANTS if not asked.words or any(word in f"{one.broken} {one.file}" for word in asked.words)
    ]
    wrong = misfits(ROOT, chosen)
    if wrong or not chosen:
        print("\n".join(wrong) or "no fault has such a word")
        return 1
    trials = survey(ROOT, chosen, asked.workers)
    bad = [trial for trial in trials if not trial.as_wanted]
    for trial in bad:
        print(f"\n== {trial.told}\n{trial.output[-4000:]}")
    print(f"\n{len(chosen)} faults planted, {len(bad)} not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
