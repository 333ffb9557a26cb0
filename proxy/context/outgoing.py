"""The outgoing prompt: its rendering, its check, and the prefix that the provider's cache should serve.

If no edit is new, the work continues from the results of the last request: only new messages are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.context import ground, rules
from proxy.context.plan import Edit, Insert, View
from proxy.context.prices import Model
from proxy.context.render import Rendering, plain, render
from proxy.context.session import Session


def rendered(
    seen: View,
    edits: Mapping[bytes, Edit],
    inserts: Mapping[int, Sequence[Insert]],
    after: Sequence[Insert],
    model: Model,
) -> Rendering:
    """Render the messages as they go out. Raises RuleBroken, and ValueError if a message has no text to replace."""
    if edits is not seen.edits:
        made = render(seen.messages, seen.keys, edits, seen.whole, inserts, after)
        rules.check(made.outs, seen.messages, model)
        return made

    def go_on(begin: int, front: Rendering | None) -> Rendering:
        return plain(seen.messages, seen.keys, edits, seen.whole, begin, front)

    without = seen.settled("rendering", go_on)
    made = render(seen.messages, seen.keys, edits, seen.whole, inserts, after, without)
    if edits or inserts or after:
        _check(seen, without, made, model, inserts)
    return made


def _check(
    seen: View, without: Rendering, made: Rendering, model: Model, inserts: Mapping[int, Sequence[Insert]]
) -> None:
    """Check the same as `rules.check`, incrementally.

    Among the inserts, only a message of ours at the end can break a rule of order. System prompts, prompts and results
    have a text already.
    """

    def walk(_: int, front: rules.Walk | None) -> rules.Walk:
        front = front or rules.Walk(model)
        return front.on(without.outs[front.count :])

    def walk_as_it_came(begin: int, front: rules.Walk | None) -> rules.Walk:
        return (front or rules.Walk(model)).on(rules.outs(seen.messages[begin:]))

    broken = seen.settled("walk", walk, model).on(made.outs[len(without.outs) :]).violations()
    if broken:
        rules.compare(broken, seen.grown("walk", walk_as_it_came, model).violations())

    def kept(n: int) -> None:
        at = made.place_of(n)
        out = None if at is None else made.outs[at]
        rules.check_kept(seen.messages[n], out, is_prompt=n == seen.ground.prompt)

    def systems(begin: int, _: bool | None) -> bool:
        for n in range(begin, len(seen.messages)):
            if seen.messages[n].is_system:
                kept(n)
        return True

    seen.settled("kept", systems)
    if inserts and seen.messages[0].is_system:
        kept(0)
    if seen.ground.prompt >= 0:
        kept(seen.ground.prompt)
    kept(len(seen.messages) - 1)


def predicted(seen: View, session: Session, made: Rendering, now: float, *, moved: bool) -> int:
    """Tokens of this prompt that the provider's cache should serve.

    moved: True if tool definitions come in front of the messages with this request.
    """
    if not session.sent:
        return min(seen.cached, seen.head + sum(made.sizes))
    if session.sent_at is None or now - session.sent_at > seen.model.ttl_s or seen.model.cache == "none":
        return 0
    matched = 0 if moved else ground.alike(tuple(made.marks), session.sent)
    same = seen.head + sum(made.sizes[:matched])
    if seen.model.cache == "breakpoint" and matched < len(session.sent):
        outs = made.outs[:matched]
        last = next((n for n in range(matched - 1, -1, -1) if (m := outs[n].message) is not None and m.marked), -1)
        same = seen.head + sum(made.sizes[: last + 1])
    return same // seen.model.block * seen.model.block if same >= seen.model.min else 0
