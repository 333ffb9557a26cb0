"""From decisions to bytes: each message as it goes out, untouched ones as the slice that they came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.chat.dialects import completions
from proxy.chat.message import Message
from proxy.context.plan import Edit, Insert
from proxy.context.rules import Out
from proxy.context.view import mark, with_texts


def edited(message: Message, edit: Edit | None) -> bytes | None:
    """The message's outgoing bytes, None where it is gone. ValueError where it has no text to replace."""
    if edit is None:
        return message.raw
    if edit.action == "gone":
        return None
    return message.derive(lambda m: _apply(m, edit), ("out", edit))


def _apply(message: Message, edit: Edit) -> bytes:
    text = edit.text or ""
    if edit.action == "text":
        return completions.with_text(message.raw, text)
    if edit.action == "append":
        return completions.with_appended(message.raw, text)
    return completions.without_calls(message.raw)


def visible(message: Message, edit: Edit | None) -> str:
    """The message's text as it goes out."""
    if edit is None or edit.action == "text_only":
        return message.text
    return message.text + (edit.text or "") if edit.action == "append" else (edit.text or "")


class Rendering:
    """The outgoing messages of a plan: bytes, marks, sizes, and what the rules look at."""

    def __init__(self) -> None:
        self.raws: list[bytes] = []
        self.marks: list[bytes] = []
        self.sizes: list[int] = []
        self.outs: list[Out] = []

    def add(self, raw: bytes, mark: bytes, size: int, out: Out) -> None:
        """One more message at the end."""
        self.raws.append(raw)
        self.marks.append(mark)
        self.sizes.append(size)
        self.outs.append(out)


def render(
    messages: Sequence[Message],
    keys: Sequence[bytes],
    edits: Mapping[bytes, Edit],
    whole: Sequence[int],
    inserts: Mapping[int, Sequence[Insert]],
    after: Sequence[Insert],
) -> Rendering:
    """All messages in order. inserts: texts by the index of the message that they are appended to. after: texts that go
    into a user message of ours at the end.

    A mark names the message without what is inserted into it: a text at the very end of a prompt does not
    break the cached prefix in front of it.
    """
    made = Rendering()
    raws, marks, sizes, outs = made.raws, made.marks, made.sizes, made.outs
    for n, message in enumerate(messages):
        edit = None if message.is_system else edits.get(keys[n])
        added = inserts.get(n)
        if edit is None and added is None:  # most messages of most prompts
            raws.append(message.raw)
            marks.append(message.form)
            sizes.append(whole[n])
            outs.append(Out(message, message.text, bool(message.calls)))
            continue
        raw = edited(message, edit)
        if raw is None:
            continue
        text = visible(message, edit)
        mark_bytes = mark(message, edit)
        for insert in added or ():
            raw = completions.with_appended(raw, insert.text)
            text += insert.text
            if insert.place == "system":
                mark_bytes = with_texts(mark_bytes, [insert.text])
        calls = bool(message.calls) and not (edit and edit.action == "text_only")
        made.add(raw, mark_bytes, whole[n] if edit is None else edit.after, Out(message, text, calls))
    if after:
        text = "\n\n".join(insert.text.strip() for insert in after)
        made.add(completions.user_message(text), b"", 0, Out(None, text, False))
    return made
