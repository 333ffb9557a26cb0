"""The outgoing prompt: its rendering, its check, and the prefix that the provider's cache should serve.

If no edit is new, the work continues from the results of the last request: only new messages are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.context import history, validate
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.plan import Edit, Insert, View
from proxy.context.render import Rendering, render, render_plain


def render_prompt(
    seen: View,
    edits: Mapping[bytes, Edit],
    inserts: Mapping[int, Sequence[Insert]],
    own_inserts: Sequence[Insert],
    model: Model,
) -> Rendering:
    """Render the messages as they go out. Raises RuleBroken, and ValueError if a message has no text to replace."""
    if edits is not seen.edits:
        made = render(seen.messages, seen.keys, edits, seen.original_tokens, inserts, own_inserts)
        validate.check(made.outs, seen.messages, model)
        return made

    def go_on(begin: int, front: Rendering | None) -> Rendering:
        return render_plain(seen.messages, seen.keys, edits, seen.original_tokens, begin, front)

    without = seen.memo_edited("rendering", go_on)
    made = render(seen.messages, seen.keys, edits, seen.original_tokens, inserts, own_inserts, without)
    if edits or inserts or own_inserts:
        _check(seen, without, made, model, inserts)
    return made


def _check(
    seen: View, without: Rendering, made: Rendering, model: Model, inserts: Mapping[int, Sequence[Insert]]
) -> None:
    """Check the same as `rules.check`, incrementally.

    Among the inserts, only a message of ours at the end can break a rule of order. System prompts, prompts and results
    have a text already.
    """

    def walk(_: int, front: validate.RuleChecker | None) -> validate.RuleChecker:
        front = front or validate.RuleChecker(model)
        return front.extend(without.outs[front.count :])

    def walk_as_it_came(begin: int, front: validate.RuleChecker | None) -> validate.RuleChecker:
        return (front or validate.RuleChecker(model)).extend(validate.as_outgoing(seen.messages[begin:]))

    broken = seen.memo_edited("walk", walk, model).extend(made.outs[len(without.outs) :]).find_violations()
    if broken:
        validate.raise_new_violations(broken, seen.memo("walk", walk_as_it_came, model).find_violations())

    def kept(n: int) -> None:
        at = made.find_position(n)
        out = None if at is None else made.outs[at]
        validate.check_message_kept(seen.messages[n], out, is_prompt=n == seen.history.last_user_index)

    def systems(begin: int, _: bool | None) -> bool:
        for n in range(begin, len(seen.messages)):
            if seen.messages[n].is_system:
                kept(n)
        return True

    seen.memo_edited("kept", systems)
    if inserts and seen.messages[0].is_system:
        kept(0)
    if seen.history.last_user_index >= 0:
        kept(seen.history.last_user_index)
    kept(len(seen.messages) - 1)


def predict_cached_tokens(
    seen: View, session: BranchState, rendering: Rendering, now: float, *, tools_added: bool
) -> int:
    """Tokens of this prompt that the provider's cache should serve.

    tools_added: True if tool definitions come in front of the messages with this request.
    """
    if not session.sent_marks:
        return min(seen.cached_tokens, seen.prefix_tokens + sum(rendering.sizes))
    if session.sent_at is None or now - session.sent_at > seen.model.ttl_s or seen.model.cache == "none":
        return 0
    matched = 0 if tools_added else history.count_common_marks(tuple(rendering.marks), session.sent_marks)
    same = seen.prefix_tokens + sum(rendering.sizes[:matched])
    if seen.model.cache == "breakpoint" and matched < len(session.sent_marks):
        outs = rendering.outs[:matched]
        last = next(
            (n for n in range(matched - 1, -1, -1) if (m := outs[n].message) is not None and m.has_cache_mark), -1
        )
        same = seen.prefix_tokens + sum(rendering.sizes[: last + 1])
    return same // seen.model.block * seen.model.block if same >= seen.model.min else 0
