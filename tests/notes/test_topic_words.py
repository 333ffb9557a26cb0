from __future__ import annotations

import time

import pytest

from proxy.notes.topic_words import STOP_WORDS, find_search_words, find_topic_words, measure_text, prepare_index_text


def test_words_that_say_nothing_of_a_topic_are_left_out() -> None:
    assert find_topic_words("Please look at the file parse_header.py, and run it again") == ["parse", "header", "py"]
    assert find_topic_words("the and of") == []
    assert all(word == word.lower() for word in STOP_WORDS)


def test_a_blob_is_not_a_word() -> None:
    assert find_topic_words("x" * 41 + " " + "y" * 40 + " z") == ["x" * 40, "y" * 40]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("数据库迁移", ["数据", "据库", "库迁", "迁移"]),
        ("用Redis缓存, v2_build", ["用", "redis", "缓存", "v2", "build"]),
        ("部署的密钥", ["部署", "密钥"]),
        ("キャッシュを消す", ["キャ", "ャッ", "ッシ", "シュ", "ュを", "を消", "消す"]),
        ("しました。設定", ["設定"]),
        ("我们可以", ["们可"]),
        ("ฐานข้อมูล", ["ฐา", "าน", "นข", "ข้", "้อ", "อม", "มู", "ูล"]),
        ("서버 배포", ["서버", "배포"]),
        ("서버를 배포했다", ["서버", "버를", "배포", "포했", "했다"]),
        ("größe naïve", ["größe", "naïve"]),
    ],
)
def test_scripts_without_blanks_are_read_in_pairs(text: str, words: list[str]) -> None:
    assert find_topic_words(text) == words


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("plain text, größe", "plain text, größe"),
        ("用redis缓存数据 now", " 用 redis 缓存 存数 数据  now"),
        ("目的 です", " 目的   です "),
        ("データ・ベース", " デー ータ タベ ベー ース "),
        ("か\u3099く", " がく "),
        ("ข้อมูล", " ขอ อม มล "),
        ("서버를", " 서버 버를 "),
        ("・", "  "),
    ],
)
def test_an_index_that_looks_between_blanks_gets_all_pairs(text: str, made: str) -> None:
    assert prepare_index_text(text) == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("数据库的 redis, Redis x", ["数据", "据库", "redis"]),
        ("目的", ["目的"]),
        ("です", ["です"]),
        ("库", ["库"]),
        ("数据 据库", ["数据", "据库"]),
        ("Cafe\u0301 ?!", ["café"]),
        ("x ?!", []),
    ],
)
def test_an_index_is_asked_for_pairs_and_for_grammar_only_where_there_is_nothing_else(
    text: str, words: list[str]
) -> None:
    assert find_search_words(text) == words


def test_characters_of_chinese_count_twice_in_the_length_of_a_text() -> None:
    assert (measure_text("deploy"), measure_text("部署 ok"), measure_text("")) == (6, 7, 0)


def test_finding_topic_words_takes_linear_time() -> None:
    for text in ("数" * 400_000, "数a" * 200_000, "数 " * 200_000):
        began = time.thread_time()
        find_topic_words(text)
        find_search_words(prepare_index_text(text))
        assert time.thread_time() - began < 5
