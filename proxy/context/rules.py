"""What a strict upstream accepts: every plan is checked, and one that breaks a rule is thrown away.

The rules are those of WIRE.md 1.7, each a 400 that was met in the field. A history that breaks a rule already as the
client sent it is the client's business: only what the plan adds counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxy.chat.message import Message
from proxy.context.prices import Model
from proxy.errors import RuleBroken


class Out(NamedTuple):
    """A message of a plan as the rules see it: `message` None is a user message of ours."""

    message: Message | None
    text: str
    calls: bool

    @property
    def role(self) -> str:
        return self.message.role if self.message else "user"


def check(plan: Sequence[Out], original: Sequence[Message], model: Model) -> None:
    """Raise RuleBroken where the plan breaks a rule that the original does not."""
    broken = _violations(plan, model)
    if broken:
        before = _violations([Out(m, m.text, bool(m.calls)) for m in original], model)
        for rule, message in broken.items():
            if rule not in before:
                raise RuleBroken(rule, message)
    _check_kept(plan, original)


def _violations(plan: Sequence[Out], model: Model) -> dict[str, str]:
    """rule -> what is wrong."""
    return _pairs(plan) | _order(plan, model)


def _pairs(plan: Sequence[Out]) -> dict[str, str]:
    """W1 and W2: no result without its call before it, no call without all its results right behind it."""
    wrong: dict[str, str] = {}
    waiting: dict[str, int] = {}
    for n, (message, _, calls) in enumerate(plan):
        if message is not None and message.is_result:
            call_id = message.call_id or ""
            if not waiting.get(call_id):
                wrong.setdefault("W1", f"message {n}: a tool result without its call")
            else:
                waiting[call_id] -= 1
            continue
        if waiting:
            if any(waiting.values()):
                wrong.setdefault("W2", f"message {n}: calls before it are left without a result")
            waiting = {}
        if calls and message is not None:
            for call in message.calls:
                waiting[call.id] = waiting.get(call.id, 0) + 1
    if any(waiting.values()):
        wrong.setdefault("W2", "the last calls have no result")
    return wrong


def _order(plan: Sequence[Out], model: Model) -> dict[str, str]:
    """W4 to W8: who may follow whom, who is last, and that nobody says nothing."""
    wrong: dict[str, str] = {}
    previous = ""
    for n, (message, text, calls) in enumerate(plan):
        role = message.role if message is not None else "user"
        if role == "assistant":
            if not calls and not text and not (message and message.media):
                wrong.setdefault("W8", f"message {n}: an empty assistant message")
        elif role == "user":
            if previous == "tool" and model.after_tool != "user":
                wrong.setdefault("W6", f"message {n}: a user message after a tool result")
        elif n and role in ("system", "developer") and previous not in ("system", "developer"):
            wrong.setdefault("W4", f"message {n}: a system message that is not in front")
        if model.alternate and role == previous and role in ("user", "assistant"):
            wrong.setdefault("W5", f"message {n}: two {role} messages in a row")
        previous = role
    if previous == "assistant":
        wrong.setdefault("W7", "the last message is the assistant's")
    return wrong


def _check_kept(plan: Sequence[Out], original: Sequence[Message]) -> None:
    """System messages, the last user message and the last message stay, and begin as the client sent them."""
    kept = {id(out.message): out for out in plan if out.message is not None}
    last_user = next((m for m in reversed(original) if m.role == "user"), None)
    for message in original:
        if not (message.is_system or message is last_user or message is original[-1]):
            continue
        out = kept.get(id(message))
        if out is None:
            raise RuleBroken("kept", f"the {message.role} message that must stay is gone")
        if message.is_result and message is not last_user:
            continue  # the newest result may be shortened, but never be gone
        if not out.text.startswith(message.text):
            raise RuleBroken("kept", f"the {message.role} message that must stay has another text")
    if not any(out.role == "user" for out in plan) and last_user is not None:
        raise RuleBroken("kept", "no user message is left")
