"""Outgoing bytes of each message from the decisions. An untouched message goes out as the slice received.

`render_prompt` renders the prompt and checks it against the rules. `predict_cached_tokens` predicts its cached prefix.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Message
from proxy.context import validate
from proxy.context.branch_state import BranchState
from proxy.context.plan import WHOLE_TEXT_ACTIONS, Edit, Insert
from proxy.context.validate import PlannedMessage
from proxy.context.view import View, add_texts_to_mark, compute_mark, compute_unmarked_form, count_common_marks
from proxy.dialects.completions import request as completions


def render_message(message: Message, edit: Edit | None) -> bytes | None:
    """The message's outgoing bytes, None if it is gone. Raises ValueError if it has no text to replace."""
    if edit is None:
        return message.raw
    if edit.action == "gone":
        return None
    return message.derive(lambda m: _apply(m, edit), ("out", edit))


def _apply(message: Message, edit: Edit) -> bytes:
    text = edit.text or ""
    if edit.action == "text":
        return completions.replace_text(message.raw, text)
    if edit.action == "append":
        add_text = completions.append_text if message.is_system else completions.extend_text
        return add_text(message.raw, text)
    if edit.action == "arguments":
        return completions.replace_arguments(message.raw, decode_embedded(text, list[str | None]))
    if edit.action == "images":
        return completions.replace_images(message.raw, text)
    return completions.remove_calls(message.raw)


def read_visible_text(message: Message, edit: Edit | None) -> str:
    """The message's text as it goes out."""
    if edit is None or edit.action in ("text_only", "arguments"):
        return message.text
    return message.text + (edit.text or "") if edit.action in WHOLE_TEXT_ACTIONS else (edit.text or "")


def join_inserts(inserts: Sequence[Insert]) -> str:
    """The text of a user message of the proxy that holds these inserts."""
    return "\n\n".join(insert.text.strip() for insert in inserts)


class Rendering:
    """The outgoing messages of a plan: bytes, marks, sizes, the view of the rules, and the index of each message."""

    __slots__ = ("marks", "outs", "places", "raws", "sizes")

    def __init__(self, prefix: Rendering | None = None) -> None:
        """Make an empty rendering, or a copy of `prefix` to continue."""
        self.raws: list[bytes] = [*prefix.raws] if prefix else []
        self.marks: list[bytes] = [*prefix.marks] if prefix else []
        self.sizes: list[int] = [*prefix.sizes] if prefix else []
        self.outs: list[PlannedMessage] = [*prefix.outs] if prefix else []
        self.places: list[int] = [*prefix.places] if prefix else []

    def add(self, raw: bytes, mark: bytes, size: int, out: PlannedMessage, index: int) -> None:
        """Append one message."""
        self.raws.append(raw)
        self.marks.append(mark)
        self.sizes.append(size)
        self.outs.append(out)
        self.places.append(index)

    def find_position(self, index: int) -> int | None:
        """The position of messages[index] among the outgoing messages, None if the message is gone."""
        at = bisect_left(self.places, index)
        return at if at < len(self.places) and self.places[at] == index else None


def render_plain(
    messages: Sequence[Message],
    keys: Sequence[bytes],
    edits: Mapping[bytes, Edit],
    original_tokens: Sequence[int],
    begin: int = 0,
    prefix: Rendering | None = None,
) -> Rendering:
    """Render all messages in order, without inserts. prefix: the rendering of the first `begin` messages."""
    made = Rendering(prefix)
    raws, marks, sizes, outs, places = made.raws, made.marks, made.sizes, made.outs, made.places
    for n in range(begin, len(messages)):
        message = messages[n]
        edit = None if message.is_system else edits.get(keys[n])
        if edit is None:  # most messages of most prompts
            raws.append(message.raw)
            marks.append(compute_unmarked_form(message))
            sizes.append(original_tokens[n])
            outs.append(PlannedMessage(message, message.text, bool(message.calls)))
            places.append(n)
            continue
        raw = render_message(message, edit)
        if raw is None:
            continue
        calls = bool(message.calls) and edit.action != "text_only"
        made.add(
            raw,
            compute_mark(message, edit),
            edit.after,
            PlannedMessage(message, read_visible_text(message, edit), calls),
            n,
        )
    return made


def add_inserts(
    plain: Rendering,
    message_count: int,
    inserts: Mapping[int, Sequence[Insert]],
    own_inserts: Sequence[Insert],
) -> Rendering:
    """Return a rendering with its inserts; `plain`, which has none, is not changed.

    message_count: of the client. inserts: texts by the index of the message that they are appended to. own_inserts:
    texts for a user message of the proxy at the end.

    A mark names the message without its inserts. A text at the end of a prompt does not break the cached prefix in
    front of it. Texts after the system prompt are the exception: the mark includes them.
    """
    if not inserts and not own_inserts:
        return plain
    made = Rendering(plain)
    for n, added in inserts.items():
        at = made.find_position(n)
        if at is None:
            continue
        out = made.outs[at]
        text = out.text
        for insert in added:
            made.raws[at] = completions.append_text(made.raws[at], insert.text)
            text += insert.text
            if insert.place == "system":
                made.marks[at] = add_texts_to_mark(made.marks[at], [insert.text])
        made.outs[at] = PlannedMessage(out.message, text, out.has_calls)
    if own_inserts:
        text = join_inserts(own_inserts)
        made.add(
            completions.make_user_message(text), b"", 0, PlannedMessage(None, text, has_calls=False), message_count
        )
    return made


# The outgoing prompt: its rendering, its check, and the prefix that the provider's cache should serve.
#
# If no edit is new, the work continues from the results of the last request: only new messages are looked at.


def render_prompt(
    view: View,
    edits: Mapping[bytes, Edit],
    inserts: Mapping[int, Sequence[Insert]],
    own_inserts: Sequence[Insert],
) -> Rendering:
    """Render the messages as they go out. Raises RuleBroken, and ValueError if a message has no text to replace."""
    if edits is not view.edits:
        plain = render_plain(view.messages, view.keys, edits, view.original_tokens)
        made = add_inserts(plain, len(view.messages), inserts, own_inserts)
        validate.check(made.outs, view.messages, view.model)
        return made

    def render_rest(begin: int, known: Rendering | None) -> Rendering:
        return render_plain(view.messages, view.keys, edits, view.original_tokens, begin, known)

    plain = view.memo_edited("rendering", render_rest)
    made = add_inserts(plain, len(view.messages), inserts, own_inserts)
    if edits or inserts or own_inserts:
        _check_rules(view, plain, made, inserts)
    return made


def _check_rules(view: View, plain: Rendering, made: Rendering, inserts: Mapping[int, Sequence[Insert]]) -> None:
    """Check the same as `validate.check`, incrementally. plain: the rendering without inserts.

    Among the inserts, only a message of the proxy at the end can break a rule of order. System prompts, prompts and
    results have a text already."""

    model = view.model

    def check_planned(_: int, known: validate.RuleChecker | None) -> validate.RuleChecker:
        known = known or validate.RuleChecker(model)
        return known.extend(plain.outs[known.count :])

    def check_received(begin: int, known: validate.RuleChecker | None) -> validate.RuleChecker:
        return (known or validate.RuleChecker(model)).extend(validate.as_outgoing(view.messages[begin:]))

    broken = view.memo_edited("walk", check_planned, model).extend(made.outs[len(plain.outs) :]).find_violations()
    if broken:
        validate.raise_new_violations(broken, view.memo("walk", check_received, model).find_violations())

    def check_kept(n: int) -> None:
        at = made.find_position(n)
        out = None if at is None else made.outs[at]
        validate.check_message_kept(view.messages[n], out, is_prompt=n == view.history.last_user_index)

    def check_systems_kept(begin: int, _: bool | None) -> bool:
        for n in range(begin, len(view.messages)):
            if view.messages[n].is_system:
                check_kept(n)
        return True

    view.memo_edited("kept", check_systems_kept)
    if inserts and view.messages[0].is_system:
        check_kept(0)
    if view.history.last_user_index >= 0:
        check_kept(view.history.last_user_index)
    check_kept(len(view.messages) - 1)


def predict_cached_tokens(view: View, state: BranchState, rendering: Rendering, *, tools_added: bool) -> int:
    """Tokens of this prompt that the provider's cache should serve.

    tools_added: True if tool definitions come before the messages with this request.
    """
    if not state.sent_marks:
        return min(view.cached_tokens, view.prefix_tokens + sum(rendering.sizes))
    if state.sent_at is None or view.now - state.sent_at > view.model.ttl_s or view.model.cache == "none":
        return 0
    matched = 0 if tools_added else count_common_marks(tuple(rendering.marks), state.sent_marks)
    same = view.prefix_tokens + sum(rendering.sizes[:matched])
    if view.model.cache == "breakpoint" and matched < len(state.sent_marks):
        outs = rendering.outs[:matched]
        last = next(
            (
                n
                for n in range(matched - 1, -1, -1)
                if n in state.breakpoints or ((m := outs[n].message) is not None and m.has_cache_mark)
            ),
            -1,
        )
        same = view.prefix_tokens + sum(rendering.sizes[: last + 1])
    return same // view.model.block * view.model.block if same >= view.model.min else 0
