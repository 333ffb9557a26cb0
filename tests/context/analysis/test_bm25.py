"""Terms of texts, BM25 scores, and later mentions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.analysis import bm25
from tests.conversations import assistant, make_message, result, user


def documents(*texts: str) -> list[bm25.TermCounts]:
    return [bm25.count_terms(t) for t in texts]


def query(text: str) -> dict[str, int]:
    return dict(bm25.count_terms(text).counts)


def test_terms_are_the_words_that_say_something_in_lower_case_with_names_taken_apart() -> None:
    found = bm25.count_terms("Please fix the Parser in src/parser_config.py: the parser fails")
    assert found.counts == {"fix": 1, "parser": 3, "src": 1, "config": 1, "py": 1, "fails": 1}
    assert found.length == 8
    assert bm25.count_terms("").counts == {}
    assert bm25.count_terms("the and it is").length == 0


def test_calls_are_read_as_well_as_text() -> None:
    call = assistant("looking", "c1", tool_calls=[
        {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "deep/inside.py"}'}}
    ])  # fmt: skip
    assert {"looking", "deep", "inside"} <= bm25.count_message_terms(make_message(call)).counts.keys()


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    assert "needle" not in bm25.count_terms("hay " * bm25.MAX_READ_CHARS + "needle").counts


def test_bm25_is_robertsons_formula_on_numbers_worked_out_by_hand() -> None:
    found = bm25.score_documents(query("apple"), documents("apple pear", "pear pear pear pear", "plum plum plum"))
    worth = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    flat = 1.2 * (1 - 0.75 + 0.75 * 2 / 3)
    assert found == pytest.approx([worth * 1 * 2.2 / (1 + flat), 0, 0])


def test_rare_words_and_short_texts_count_more() -> None:
    found = bm25.score_documents(
        query("common rare"), documents("common x", "common y", "rare z", "common " + "word " * 40)
    )
    assert found[2] > found[0] == found[1] > found[3] > 0


def test_e3_relevance_is_bm25_divided_by_the_highest() -> None:
    texts = documents("parser config error", "parser", "weather")
    scores = bm25.score_documents(query("parser config"), texts)
    assert bm25.score_relevance(query("parser config"), texts) == pytest.approx([1.0, scores[1] / scores[0], 0.0])
    assert bm25.score_relevance(query("nothing alike"), texts) == [0.0, 0.0, 0.0]
    assert bm25.score_relevance({}, texts) == [0.0, 0.0, 0.0]
    assert bm25.score_relevance(query("x"), []) == []


def test_coverage_is_the_share_of_the_query_that_a_text_has_whatever_the_others_are() -> None:
    texts = documents("alpha beta", "alpha", "gamma")
    worth = bm25.weigh_terms(query("alpha beta"), texts)
    assert bm25.measure_coverage(query("alpha beta"), texts[0], worth) == pytest.approx(1.0)
    assert 0 < bm25.measure_coverage(query("alpha beta"), texts[1], worth) < 0.5
    assert bm25.measure_coverage(query("alpha beta"), texts[2], worth) == 0.0
    assert bm25.measure_coverage({}, texts[0], {}) == 0.0


def test_e3_cosine_is_never_below_zero_and_zero_where_vectors_do_not_fit() -> None:
    assert bm25.cosine_similarity((1.0, 0.0), (2.0, 0.0)) == pytest.approx(1.0)
    assert bm25.cosine_similarity((1.0, 1.0), (1.0, 0.0)) == pytest.approx(math.sqrt(0.5))
    assert bm25.cosine_similarity((1.0, 0.0), (-1.0, 0.0)) == 0.0
    assert bm25.cosine_similarity((0.0, 0.0), (1.0, 0.0)) == 0.0
    assert bm25.cosine_similarity((), (1.0,)) == 0.0
    assert bm25.cosine_similarity((1.0,), (1.0, 2.0)) == 0.0


def test_e3_references_are_mentions_later_over_mentions_by_others() -> None:
    assert bm25.score_references([(1,), (1,), (1,)]) == [1.0, 0.5, 0.0]
    assert bm25.score_references([(1, 2), (3,), (2,)]) == [1.0, 0.0, 0.0]
    assert bm25.score_references([(1,), (2,)]) == [0.0, 0.0]
    assert bm25.score_references([(1, 1), (1,)]) == [1.0, 0.0]
    assert bm25.score_references([]) == []


@given(st.lists(st.lists(st.integers(0, 8), max_size=6), max_size=12))
def test_e3_references_are_what_counting_gives(mentioned: list[list[int]]) -> None:
    sets = [set(m) for m in mentioned]
    for n, found in enumerate(bm25.score_references(mentioned)):
        later = sum(name in other for name in sets[n] for other in sets[n + 1 :])
        others = sum(name in other for name in sets[n] for m, other in enumerate(sets) if m != n)
        assert found == later / max(1, others)


def test_names_are_the_first_ones_of_a_message() -> None:
    many = " ".join(f"src/{n}.py" for n in range(30))
    assert bm25.hash_names(make_message(result("1", many))) == tuple(hash(f"src/{n}.py") for n in range(bm25.MAX_NAMES))
    assert bm25.hash_names(make_message(user("no names at all"))) == ()


def test_a_share_of_a_score_goes_to_those_next_to_it() -> None:
    assert bm25.spread_scores([0, 0, 0, 8, 0, 0], 0.5) == [0, 2, 4, 8, 4, 2]
    assert bm25.spread_scores([8, 4], 0.25, reach=1) == [9, 6]
    assert bm25.spread_scores([0, 8, 0], 0.0) == [0, 8, 0]
    assert bm25.spread_scores([], 0.5) == []


@given(st.lists(st.floats(0, 100), max_size=20), st.floats(0, 1), st.integers(1, 4))
def test_no_score_falls_by_what_is_shared(scores: list[float], share: float, reach: int) -> None:
    found = bm25.spread_scores(scores, share, reach)
    assert len(found) == len(scores)
    assert all(after >= before for before, after in zip(scores, found, strict=True))


def test_texts_in_scripts_without_blanks_are_ranked_by_what_they_are_about() -> None:
    texts = documents("登录服务用缓存保存会话", "报表服务每天重建索引", "支付服务的密钥在金库中", "deploy goes first")
    for asked, best in (("索引什么时候重建", 1), ("密钥在哪里", 2), ("会话缓存", 0)):
        scores = bm25.score_documents(query(asked), texts)
        assert max(range(4), key=scores.__getitem__) == best, asked
