"""The outgoing prompt is checked, and the tokens that the provider's cache should serve are predicted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.context import render
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.plan import Edit, Insert
from proxy.errors import RuleBroken
from tests.conversations import assistant, build_view, result, system, user

TALK = [system(), user("a"), assistant("so", "1"), result("1", "x" * 90), assistant("done"), user("b")]
SAID = Insert("tail", "test", "\n\nThink.")


def test_unchanged_prompts_are_not_rendered_again() -> None:
    view = build_view(TALK)
    one = render.render_prompt(view, view.edits, {}, ())
    other = render.render_prompt(view, view.edits, {5: [SAID]}, ())
    assert one is render.render_prompt(view, view.edits, {}, ())
    assert (other.raws[:5], other.marks) == (one.raws[:5], one.marks)
    assert other.raws[5].endswith(b'b\\n\\nThink."}')


def test_edits_that_are_new_are_checked() -> None:
    view = build_view(TALK)
    half = Edit(view.keys[2], "gone", None, "s", "", 9, 0)
    with pytest.raises(RuleBroken, match="without its call"):
        render.render_prompt(view, {half.key: half}, {}, ())


def test_edits_that_are_in_force_are_checked() -> None:
    half = Edit(build_view(TALK).keys[2], "gone", None, "s", "", 9, 0)
    view = build_view(TALK, state=BranchState(edits={half.key: half}))
    with pytest.raises(RuleBroken, match="without its call"):
        render.render_prompt(view, view.edits, {}, ())


def test_a_message_of_the_proxy_is_checked() -> None:
    strict = Model(alternate=True)
    view = build_view(TALK, model=strict)
    with pytest.raises(RuleBroken, match="two user messages"):
        render.render_prompt(view, view.edits, {}, (SAID,))
    assert len(render.render_prompt(build_view(TALK), view.edits, {}, (SAID,)).raws) == 7


def test_a_rule_that_the_client_breaks_itself_does_not_stop_the_plan() -> None:
    odd = [user("a"), user("b"), assistant("c"), user("d")]
    strict = Model(alternate=True)
    view = build_view(odd, model=strict)
    assert len(render.render_prompt(view, view.edits, {3: [SAID]}, ()).raws) == 4


def test_the_cache_serves_the_common_prefix_with_the_last_prompt() -> None:
    view = build_view(TALK)
    made = render.render_prompt(view, view.edits, {}, ())
    last = BranchState(sent_marks=tuple(made.marks[:4]), sent_sizes=tuple(made.sizes[:4]), sent_at=0.0)
    moved = replace(last, sent_marks=(b"", *last.sent_marks))
    warm, cold = replace(view, now=1.0), replace(view, now=1000.0)
    assert render.predict_cached_tokens(warm, last, made, tools_added=False) == sum(made.sizes[:4])
    assert render.predict_cached_tokens(warm, moved, made, tools_added=False) == 0
    assert render.predict_cached_tokens(warm, last, made, tools_added=True) == 0
    assert render.predict_cached_tokens(cold, last, made, tools_added=False) == 0
