"""Every fault that is promised to be survived has its test, and none of these tests is ever lost unnoticed.

A test that bears the fault's name (`test_u5_...`) shows it; the table names those that show one under another name.
Both are looked for in the source, so that a test that was renamed or removed leaves its row red.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

FAULTS = {
    "u1": "the upstream refuses the connection",
    "u2": "the upstream never accepts the connection",
    "u3": "the upstream resets the connection before its headers",
    "u4": "the upstream resets the connection within a stream",
    "u5": "a stream ends without its end marker",
    "u6": "a stream ends within a line or a character",
    "u7": "the upstream is silent for minutes",
    "u8": "an answer comes byte by byte",
    "u9": "a stream is cut into pieces at any byte",
    "u10": "an answer has another type than was asked for, or is garbage",
    "u11": "a body is shorter or longer than it says",
    "u12": "the upstream asks for a retry, or fails",
    "u13": "an answer is compressed unasked",
    "u14": "an answer unpacks to gigabytes",
    "u15": "an endless stream, or one endless line",
    "u16": "a redirect to another address",
    "u17": "informational answers, trailers, HTTP/1.0 and hop-by-hop headers",
    "u18": "the upstream repeats the key",
    "u19": "packets are lost",
    "c1": "the client leaves within a stream",
    "c2": "the client leaves before the first byte",
    "c3": "many clients leave at random moments",
    "c4": "the client closes its sending half",
    "c5": "the client reads slowly",
    "c6": "the client is silent, or sends byte by byte",
    "c7": "a body over the limit",
    "c8": "a request body that unpacks to gigabytes, or in an unknown coding",
    "c9": "pipelined requests, `Expect`, and reuse after an error",
    "c10": "more connections than allowed",
    "h1": "headers that two readers could read in two ways",
    "h2": "no host, two hosts, or a host that is none",
    "h3": "hop-by-hop headers",
    "h4": "headers over the limit",
    "h5": "paths that are spelt in odd ways",
    "h6": "line ends in values that are repeated",
    "h7": "a request that is not changed",
    "j1": "JSON of extreme depth or size",
    "j2": "JSON that only some readers accept",
    "j3": "a body of the wrong shape",
    "j4": "texts that take tokenizers long",
    "j5": "texts that take patterns long",
    "j6": "special tokens in a text",
    "j7": "calls and results that do not match",
    "j8": "no network",
    "d1": "the process is killed",
    "d2": "power is lost",
    "d3": "the disk is full",
    "d4": "the disk fails, or files run out",
    "d5": "the disk is slow",
    "d6": "another process holds the lock, or an old snapshot",
    "d7": "the database is deleted, replaced, truncated or damaged",
    "d8": "the clock jumps",
    "d9": "the process is told to stop under load, or killed in a migration",
    "d10": "two processes on one file",
    "d11": "a store with millions of rows",
    "d12": "a request is cancelled at any await",
    "s1": "each route with each wrong key",
    "s2": "SQL in values that clients choose, and values beyond every limit",
    "s3": "SQL of a model that tries to get out",
    "s4": "names of sessions that are guessed or collide",
    "s5": "memos that try to give orders",
    "s6": "tool results that look like the model's own notes, and bodies of clients that are not let in",
    "s7": "a model that calls the proxy's tools for ever",
    "s8": "tools of the client with a name of the proxy's",
    "s9": "addresses that a client chooses",
    "s10": "markup in everything that the dashboard shows",
    "s11": "pages of other sites",
    "s12": "secrets in logs, errors, metrics and the store",
    "s13": "the time that a check of a key takes",
    "s14": "names without number in metrics",
    "s15": "packages that were tampered with",
    "r1": "a long run with faults",
    "r2": "twice the load that can be served",
    "r3": "one heavy request among many streams",
}
"""Each row in words: of the upstream (u), the client (c), HTTP (h), JSON (j), the disk (d), attacks (s), load (r)."""
ROWS = [*FAULTS]

WHERE = ("faults", "upstream", "web")
"""Folders in which a row's letter is a fault's; elsewhere it may be a feature's."""

SHOWN: dict[str, list[str]] = {
    "u2": ["upstream/test_client.py::test_a_connection_that_is_never_accepted_ends_at_the_connect_timeout"],
    "u4": [
        "exchange/test_handler.py::test_a_broken_stream_is_passed_on_up_to_the_break_with_an_error_and_without_done"
    ],
    "u5": [
        "exchange/test_record_outcome.py::test_an_answer_that_broke_off_is_stored_as_far_as_it_came_and_can_be_continued"
    ],
    "u9": [
        "stream/test_completions_relay.py::test_without_options_every_byte_is_passed_on_at_every_cut",
        "stream/test_sse.py::test_a_stream_reads_alike_whole_byte_by_byte_and_cut_anywhere",
    ],
    "u10": [
        "exchange/test_handler.py::test_whatever_a_200_holds_reaches_the_client",
        "exchange/test_handler.py::test_whatever_a_stream_holds_reaches_the_client",
    ],
    "u11": ["exchange/test_handler.py::test_an_answer_cut_short_is_never_reported_as_whole"],
    "c1": ["web/test_chat.py::test_upstream_is_closed_when_the_client_leaves_mid_stream"],
    "c2": ["web/test_chat.py::test_upstream_is_closed_when_the_client_leaves_before_the_first_byte"],
    "c3": ["web/test_chat.py::test_the_next_requests_succeed_after_many_clients_have_left"],
    "c5": ["web/test_chat.py::test_a_client_that_reads_slowly_holds_the_upstream_back"],
    "j3": [
        "web/test_chat.py::test_odd_bodies_are_passed_on_untouched_and_upstream_decides",
        "web/test_chat.py::test_no_body_causes_an_error_of_the_proxy",
    ],
    "j4": [
        "test_tokenizers.py::test_pathological_texts_are_counted_at_once",
        "test_tokenizers.py::test_a_panic_becomes_an_estimate_and_an_interrupt_does_not",
    ],
    "j5": [
        "stream/test_sse.py::test_parsing_events_takes_linear_time",
        "stream/test_block_filter.py::test_filtering_blocks_takes_linear_time_and_bounded_memory",
        "stream/test_completions_relay.py::test_relaying_a_long_stream_takes_linear_time",
    ],
    "j7": [
        "context/test_pipeline_properties.py::test_every_plan_is_valid_and_keeps_what_it_promises",
        "chat/test_group.py::test_reused_call_ids_are_paired_by_where_they_stand",
    ],
    "d1": [
        "store/test_crash.py::test_what_was_acknowledged_is_stored_after_kill_9_ten_times",
        "store/test_postgres.py::test_a_server_that_is_killed_and_comes_back_loses_nothing_that_was_acknowledged",
    ],
    "d3": [
        "store/test_crash.py::test_a_full_disk_loses_nothing_that_waits_and_records_what_it_refused",
        "store/test_crash.py::test_files_that_may_not_grow_lose_nothing_that_waits_and_record_what_was_refused",
    ],
    "d4": [
        "store/test_crash.py::test_a_failed_sync_acknowledges_nothing_and_is_survived",
        "store/test_writer.py::test_after_an_io_error_the_log_is_copied_before_anything_is_acknowledged",
    ],
    "d6": [
        "store/test_writer.py::test_while_another_process_holds_the_lock_items_wait_and_are_written_after",
        "store/test_writer.py::test_a_reader_with_an_old_snapshot_does_not_stop_writing_and_the_log_shrinks_after",
    ],
    "d7": [
        "store/test_writer.py::test_a_deleted_file_is_noticed_and_nothing_is_acknowledged_until_it_is_back",
        "store/test_writer.py::test_a_lost_file_is_noticed_without_a_write_too",
        "store/test_writer.py::test_a_truncated_file_is_noticed",
        "store/test_sqlite.py::test_a_damaged_file_is_refused_and_stays_as_it_is",
        "store/test_migrate.py::test_a_flipped_page_is_damaged",
    ],
    "d9": ["store/test_migrate.py::test_a_migration_that_breaks_off_leaves_the_old_schema_and_can_be_run_again"],
    "d10": ["store/test_crash.py::test_a_second_process_on_the_same_file_is_refused"],
    "d11": [
        "web/api/test_large.py::test_pages_of_a_large_store_come_in_time",
        "store/test_sql.py::test_a_statement_never_reads_a_whole_table",
    ],
    "d12": ["store/test_sqlite.py::test_cancelling_reads_and_writes_leaves_nothing_behind"],
    "s3": [
        "tools/test_escape.py::test_no_sql_statement_escapes_from_the_sandbox",
        "tools/test_escape.py::test_no_sql_statement_exceeds_its_time_limit",
        "tools/test_escape.py::test_a_hundred_thousand_generated_statements",
        "tools/test_escape.py::test_without_one_layer_the_others_hold",
    ],
    "s4": ["exchange/test_isolation.py::test_one_name_under_two_credentials_shares_nothing"],
    "s5": [
        "notes/test_memo_matching.py::test_no_memo_can_end_its_block_or_begin_anything",
        "notes/test_memo_matching.py::test_a_memo_of_100_kb_is_shown_to_2_kb",
    ],
    "s6": ["exchange/test_state_blocks.py::test_s6_a_block_in_a_tool_result_or_a_user_message_is_not_a_state"],
    "s7": [
        "exchange/test_tool_loop_ends.py::test_after_so_many_rounds_the_model_is_asked_once_more_without_our_tools",
        "exchange/test_tool_loop_ends.py::test_time_is_bounded_too_and_ends_a_tool_that_runs",
        "exchange/test_tool_loop_ends.py::test_a_client_that_leaves_ends_the_round_and_the_tool",
    ],
    "s8": [
        "exchange/test_tool_loop.py::test_the_clients_own_tool_of_a_name_is_the_clients_to_run",
        "exchange/test_tool_loop.py::test_a_tool_that_was_not_offered_is_the_clients_business",
    ],
    "s9": [
        "upstream/test_client.py::test_the_environments_proxy_is_not_used_and_the_targets_own_is",
        "upstream/test_client.py::test_no_module_imports_another_http_client",
    ],
    "s10": [
        "web/dashboard/test_hostile.py::test_there_are_two_hundred_hostile_texts",
        "web/dashboard/test_hostile.py::test_names_of_sessions_and_models_in_the_list",
        "web/dashboard/test_static_files.py::test_texts_never_become_markup_and_nothing_comes_from_elsewhere",
    ],
    "s15": ["test_house.py::test_locks_are_hashed_and_name_no_index"],
}
"""By row, the tests that show it under a name of their own."""

_NAME = re.compile(r"test_((?:[uchjdsr]\d{1,2}_)+)")


def defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name for node in found if node.name.startswith("test_")}


def find_named_tests(tests: Path) -> dict[str, list[str]]:
    """By row, the tests that bear its name."""
    shown: dict[str, list[str]] = defaultdict(list)
    for folder in WHERE:
        for path in sorted((tests / folder).rglob("test_*.py")):
            for name in sorted(defined(path)):
                match = _NAME.match(name)
                for row in match[1].rstrip("_").split("_") if match else ():
                    shown[row].append(f"{path.relative_to(tests).as_posix()}::{name}")
    return shown


@pytest.mark.parametrize("row", ROWS)
def test_each_promised_fault_has_a_test(row: str) -> None:
    assert find_named_tests(TESTS)[row] or row in SHOWN, "nothing shows what happens then"
    for test in SHOWN.get(row, ()):
        file, _, name = test.partition("::")
        assert name in defined(TESTS / file), f"{test} is gone"


def test_the_table_has_no_row_that_is_none() -> None:
    assert set(SHOWN) <= set(ROWS)


def test_a_row_without_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "web" / "test_one.py").write_text("async def test_u4_u5_it_breaks(): ...\ndef test_c1(): ...\n")
    (tmp_path / "store" / "test_two.py").write_text("def test_c2_is_a_feature_here(): ...\n")
    assert find_named_tests(tmp_path) == {
        "u4": ["web/test_one.py::test_u4_u5_it_breaks"],
        "u5": ["web/test_one.py::test_u4_u5_it_breaks"],
    }
