from __future__ import annotations

import json

from proxy.operator.session_titles import TITLE_CHARS, make_title, read_text, read_title
from tests.operator.agent import run_conversation


def test_a_title_is_one_line_without_tags_and_without_the_agent_s_own_context() -> None:
    assert make_title("<task>\nFix  the\nbuild.</task>") == "Fix the build."
    assert make_title("<system-reminder>Be careful.</system-reminder>\nPaint it.") == "Paint it."
    assert make_title("<environment_context>\n<cwd>/w</cwd>\n</environment_context>") == ""
    assert make_title("<system-reminder>cut off in the midd") == ""
    command = "<command-message>review</command-message>\n<command-name>/review</command-name>"
    assert make_title(command) == "/review", "the name of the command stands there once"
    assert make_title("<local-command-caveat>Caveat: do not answer.</local-command-caveat>") == ""
    long = make_title("word " * 100)
    assert (len(long), long[-1]) == (TITLE_CHARS, "…")
    assert make_title("word " * 100, 10) == "word word…"
    assert make_title("if a < b and c > d: stop") == "if a < b and c > d: stop"


def test_the_text_of_a_message_is_read_even_where_it_is_cut_off() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "Look."}]
    assert read_text(json.dumps({"role": "user", "content": parts}).encode()) == "Look."
    whole = json.dumps({"role": "user", "content": 'Say "hello"\nto all ' + "x" * 1000}).encode()
    assert read_text(whole[:200]).startswith('Say "hello"\nto all xxx')
    assert read_text(b'{"role": "user", "conte') == ""
    assert read_text(b"[1]") == ""


async def test_a_session_has_the_title_of_its_first_prompt_that_says_something() -> None:
    async with run_conversation("thrifty") as talk:
        title = await read_title(talk.parts, talk.tenant, "s")
        assert title
        assert title.startswith(make_title(next(m["content"] for m in talk.agent.messages if m["role"] == "user"))[:40])
        assert await read_title(talk.parts, talk.tenant, "nobody") == ""
