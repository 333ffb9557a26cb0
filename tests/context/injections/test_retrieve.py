"""Row E5: what has left the prompt comes back when it is spoken of again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.chat.chain import public_id
from proxy.context.analysis.bm25 import count_terms
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.injections.retrieve import QUOTATION_START, Retrieve, make_excerpt
from proxy.context.plan import Edit, Insert, RetrievedText
from proxy.context.policy import Policy
from proxy.context.stage import make_injection
from proxy.context.view import View
from proxy.errors import ConfigError
from tests.context.ranking.test_memory_levels import step
from tests.conversations import Json, assistant, build_view, change_view, result, user

OLD = [
    user("why does the tokenizer choke on unicode"),
    *step(1, "src/tokenizer.py line 40: unicode escapes are read twice\nnothing else here"),
    assistant("The tokenizer reads unicode escapes twice; fixed."),
    user("write a poem about autumn leaves"),
    assistant("Leaves of gold drift down in silence, autumn sighs."),
]


def hidden(values: Sequence[Json], gone: Sequence[int], *, literal: bool = True, **more: Any) -> View:
    """The view with some messages out of the prompt."""
    view = build_view(values, policy=Policy("p", schedule="always") if literal else Policy("p"))
    edits = {
        view.keys[n]: Edit(view.keys[n], "gone", None, "compress_levels", "r", view.original_tokens[n], 0) for n in gone
    }
    tokens = [0 if n in gone else size for n, size in enumerate(view.tokens)]
    return change_view(view, edits=edits, tokens=tokens, **more)


def ask(text: str, gone: Sequence[int] = range(4), injection: Retrieve | None = None, **more: Any) -> list[Insert]:
    return list((injection or Retrieve())(hidden([*OLD, user(text)], gone, **more)))


def test_e5_a_past_topic_is_brought_back_from_the_messages_themselves_with_where_it_is_from() -> None:
    view = hidden([*OLD, user("does the tokenizer still choke on unicode")], range(4))
    found = list(Retrieve()(view))
    assert sorted(i.quoted_keys[0] for i in found) == sorted(view.keys[n] for n in (0, 2, 3))
    for insert in found:
        assert (insert.place, insert.source, insert.persistent) == ("tail", "retrieve", False)
        head, *lines = insert.text.strip().splitlines()
        assert head.startswith(f"{QUOTATION_START}{public_id(insert.quoted_keys[0])}, ")
        assert "quoted from earlier, information only" in head
        assert lines
        assert all(line.startswith("> ") for line in lines)
    assert any("unicode escapes are read twice" in i.text for i in found)
    assert all("nothing else here" not in i.text for i in found)


def test_a_text_that_was_said_repeatedly_is_quoted_once() -> None:
    said = [assistant("The tokenizer chokes on unicode.") for _ in range(4)]
    values = [
        user("x"),
        *said,
        assistant("The tokenizer reads unicode twice."),
        user("does the tokenizer read unicode"),
    ]
    found = [i.text.partition("\n> ")[2] for i in Retrieve()(hidden(values, range(1, 6)))]
    assert sorted(found) == ["The tokenizer chokes on unicode.", "The tokenizer reads unicode twice."]


def test_an_answer_of_nothing_but_a_call_is_not_quoted() -> None:
    values = [user("x"), *step(1, "read"), assistant("Done."), user("does the tokenizer read unicode")]
    values[1]["tool_calls"][0]["function"]["arguments"] = '{"query":"tokenizer unicode"}'
    assert list(Retrieve()(hidden(values, [1]))) == []


@pytest.mark.parametrize("text", ["continue", "Next.", "go on", "OK", "Thanks!", "yes", "Go ahead"])
def test_e5_continuing_retrieves_nothing(text: str) -> None:
    assert ask(text) == []


def test_e5_nothing_is_retrieved_below_the_relevance_floor() -> None:
    text = "plan a garden with tulips, roses, a pond, gravel and unicode"
    assert ask(text) == []
    assert ask(text, injection=Retrieve(floor=0.01)) != []
    assert ask("tulips roses pond") == []
    assert ask("unicode") == []  # one word names no topic
    assert ask("unicode", injection=Retrieve(least_words=1)) != []


def test_e5_a_text_that_is_still_in_the_prompt_is_not_retrieved() -> None:
    assert ask("tokenizer unicode escapes", gone=()) == []
    (only,) = ask("tokenizer unicode escapes", gone=(2,))
    assert "line 40" in only.text


def test_e5_an_old_task_that_is_named_brings_back_its_summary() -> None:
    text = "what was it with the tokenizer and unicode earlier?"
    found = ask(text)
    assert "summary of a task" in found[0].text
    assert "run(" in found[0].text
    assert "summary of a task" not in ask("tokenizer and unicode")[0].text
    # Not where a part of it stands in the prompt.
    assert all("summary of a task" not in i.text for i in ask(text, gone=(2, 3)))


def test_e5_retrieval_is_limited_in_tokens_and_items() -> None:
    text = "tokenizer unicode escapes"
    assert len(ask(text)) == 3
    assert len(ask(text, injection=Retrieve(items=2))) == 2
    for most in (0, 150, 300, 450):
        found = ask(text, injection=Retrieve(tokens=most))
        assert sum(len(i.text) for i in found) <= most
    assert ask(text, budget=0) == []


def test_e5_an_error_that_came_before_brings_back_what_was_done_then() -> None:
    values = [
        user("run the tests"),
        *step(1, "Traceback\nKeyError: 'x' at line 40"),
        *step(2, "patched it"),
        *step(3, "all fine"),
        *step(4, "more\nKeyError: 'x' at line 97"),
    ]
    view = hidden(values, range(1, 5))
    found = list(Retrieve()(view))
    assert [i.quoted_keys for i in found] == [(view.keys[2],)]
    assert "> KeyError: 'x' at line 40" in found[0].text
    assert '> then: run({"n": 2}) -> patched it' in found[0].text
    assert list(Retrieve(errors=False)(view)) == []
    assert list(Retrieve()(hidden(values, ()))) == []
    other = [*values[:-1], result("c4", "ValueError: y")]
    assert list(Retrieve()(hidden(other, range(1, 5)))) == []


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (
            "web1 : ok=3 changed=1 unreachable=0 failed=1 ignored=0",
            "web1 : ok=3 changed=1 unreachable=0 failed=0 ignored=0",
        ),
        ("12 passed, 0 failed in 1s", "14 passed, 0 failed in 2s"),
        ("Errors: 0, warnings: 2", "Errors: 0, warnings: 3"),
        ("No errors in 3 files", "No errors in 4 files"),
        ("exit code: 0\nlogged: KeyError: 'x'", "exit code: 0\nlogged: KeyError: 'x'"),
    ],
)
def test_a_count_of_no_errors_and_a_run_that_succeeded_are_not_reported_as_the_same_error(
    first: str, last: str
) -> None:
    values = [user("deploy it"), *step(1, first), *step(2, "patched it"), *step(3, last)]
    assert list(Retrieve()(hidden(values, range(1, 5)))) == []


def test_e5_literal_policies_say_it_with_every_request_of_the_task_others_once_and_for_good() -> None:
    talk = [*OLD, user("tokenizer unicode escapes")]
    more = [*talk, *step(9, "looking")]
    injection = Retrieve()
    texts = [i.text for i in injection(hidden(talk, range(4)))]
    assert [i.text for i in injection(hidden(more, range(4)))] == texts != []
    found = list(injection(hidden(talk, range(4), literal=False)))
    assert [i.text for i in found] == texts
    assert all(i.persistent for i in found)
    assert list(injection(hidden(more, range(4), literal=False))) == []
    view = hidden(talk, range(4), literal=False)
    kept = Edit(view.keys[-1], "append", texts[0], "state", "r", 1, 2)
    assert list(injection(msgspec.structs.replace(view, edits={**view.edits, kept.key: kept}))) == []


def test_e6_a_text_that_the_client_no_longer_sends_comes_from_the_store() -> None:
    stored = [
        RetrievedText(b"s" * 16, "summary", "tool", "the tokenizer was fixed in commit abc for unicode"),
        RetrievedText(b"o" * 16, "message", "user", "a shopping list"),
    ]
    view = hidden([user("tokenizer and unicode: which commit")], (), retrieved_texts=stored)
    (found,) = Retrieve()(view)
    assert found.quoted_keys == (b"s" * 16,)
    assert "stored summary" in found.text
    here = change_view(view, retrieved_texts=[RetrievedText(view.keys[0], "message", "user", "tokenizer and unicode")])
    assert list(Retrieve()(here)) == []


def test_an_excerpt_has_the_lines_that_match_in_their_order() -> None:
    text = "first\nalpha beta\nnothing\nbeta\n\nlast"
    assert make_excerpt(text, count_terms("beta alpha"), 100) == "alpha beta\n… beta"
    assert make_excerpt(text, count_terms("absent"), 100) == "first"
    assert make_excerpt(text, count_terms("beta nothing"), 100) == "alpha beta\nnothing\nbeta"
    assert make_excerpt(text, count_terms("beta"), 13) == "alpha beta"
    assert make_excerpt("", count_terms("beta"), 10) == ""


def test_an_excerpt_splits_long_lines_into_sentences_and_those_into_clauses() -> None:
    text = "It rained all day. The parser, which nobody had touched, reads the header twice! Then we went home."
    assert make_excerpt(text, count_terms("who reads the header"), 50) == "reads the header twice!"
    assert make_excerpt(text, count_terms("rained"), 50) == "It rained all day."
    assert make_excerpt(text, count_terms("rained header"), 60) == "It rained all day.\n… reads the header twice!"
    assert make_excerpt("x" * 100, count_terms("y"), 22) == "x" * 16 + "..."
    short = "one line. with two sentences"
    assert make_excerpt(short, count_terms("two"), 100) == short


TALK = [
    user("my violin came from an auction"),
    assistant("A violin from an auction, how nice."),
    user("it was made in Porto"),
    assistant("Porto is nice."),
    user("lunch was soup"),
    assistant("Soup is nice."),
]
MANY = Retrieve(together=True, roles=("user",), near=0.3, floor=0.05, items=50, item_chars=100)


def together(injection: Retrieve, text: str = "where was my violin made", **more: Any) -> list[Insert]:
    return list(injection(hidden([*TALK, user(text)], range(6), **more)))


def test_many_messages_are_quoted_in_one_text_oldest_first_with_what_stands_next_to_them() -> None:
    keys = hidden(TALK, ()).keys
    (found,) = together(MANY)
    assert found.quoted_keys == (keys[0], keys[2], keys[4])
    head, *lines = found.text.strip().splitlines()
    assert head.startswith(QUOTATION_START)
    texts = ("my violin came from an auction", "it was made in Porto", "lunch was soup")
    assert lines == [f"> {public_id(keys[2 * n])}: {text}" for n, text in enumerate(texts)]
    (found,) = together(replace(MANY, near=0.0))
    assert found.quoted_keys == (keys[0], keys[2])
    (found,) = together(replace(MANY, near=0.0, roles=()))
    assert f"> {public_id(keys[1])}, assistant: A violin from an auction, how nice." in found.text
    (found,) = together(MANY, offered_tools=frozenset({"recall"}))
    assert found.text.strip().splitlines()[1].startswith("(recall(id)")


def test_several_quotes_keep_to_their_limits_of_tokens_items_and_relevance() -> None:
    view = hidden(TALK, ())
    for tokens in range(0, 200, 7):
        for insert in together(replace(MANY, tokens=tokens)):
            assert view.token_counter.count_text(insert.text) <= tokens + 4  # pieces are counted one by one
    assert together(replace(MANY, tokens=30)) == []
    (found,) = together(replace(MANY, items=1))
    assert found.quoted_keys == (view.keys[2],), "the newer of two that are as near"
    assert together(replace(MANY, floor=5.0)) == []
    assert together(MANY, "go on") == []
    assert together(MANY, "bridges, tunnels, ferries") == []
    asked = "where was my violin made"
    assert list(MANY(hidden([*TALK, user(asked)], ()))) == [], "nothing has left the prompt"
    stored = [
        RetrievedText(b"s" * 16, "message", "user", "the violin is by Anselm"),
        RetrievedText(b"t" * 16, "message", "tool", "a violin"),
    ]
    (found,) = together(replace(MANY, near=0.0), retrieved_texts=stored)
    assert found.quoted_keys == (b"s" * 16, view.keys[0], view.keys[2])


@pytest.mark.parametrize("field", ["nothing", "old_task"])
def test_patterns_that_cannot_be_used_are_refused_by_their_name(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"retrieve\.{field}"):
        make_injection({"use": "retrieve", field: ["("]}, BUILT_IN_INJECTIONS)


def test_the_messages_are_ranked_again_where_a_client_sends_fewer_system_messages() -> None:
    about = user("does the tokenizer still choke on unicode")
    before = build_view([*[{"role": "system", "content": "Be."}] * 9, *OLD, about])
    list(Retrieve()(before))
    after = hidden([*OLD, about], range(4))
    shared = msgspec.structs.replace(after, messages=(*after.messages[:-1], before.messages[-1]))
    assert list(Retrieve()(shared)) == list(Retrieve()(after))
