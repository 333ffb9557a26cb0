"""The rules of a strict upstream: every plan is checked, and a plan that breaks a rule is thrown away.

Each rule stands for a 400 error seen in the field:

    W1    a tool result follows the assistant message with its call
    W2    every call has its result right after the assistant message
    W4    system messages are in front (templates of Qwen and Gemma)
    W5    user and assistant alternate, for models that require it (Gemma, Ministral)
    W6    no user message follows a tool result, for models that refuse it (Mistral)
    W7    the last message is not the assistant's (Claude 4.6 and later)
    W8    no assistant message is empty
    kept  system messages, the last user message and the last message stay, and begin as the client sent them

The missing numbers are rules that no edit of a message can break. W15, on reasoning that is bound to its prompt, is
checked in `exchange.prefix_bindings`. If the client's own history breaks a rule, that is the client's business: only a
violation that the plan adds counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxy.chat.group import find_last_user
from proxy.chat.message import Message
from proxy.context.models import Model
from proxy.errors import RuleBroken


class PlannedMessage(NamedTuple):
    """A message of a plan as the rules see it. `message` is None for a user message of the proxy."""

    message: Message | None
    text: str
    has_calls: bool

    @property
    def role(self) -> str:
        return self.message.role if self.message else "user"


class RuleChecker:
    """An incremental check of the rules, message by message: a longer prompt is not checked again from its start.

    count: messages checked so far.
    """

    __slots__ = ("_order", "_pairs", "_previous", "_waiting", "count", "model")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.count = 0
        self._previous = ""
        self._waiting: dict[str, int] = {}
        self._pairs: dict[str, str] = {}
        self._order: dict[str, str] = {}

    def extend(self, messages: Sequence[PlannedMessage]) -> RuleChecker:
        """A new check that continues over these messages."""
        if not messages:
            return self
        walk = RuleChecker(self.model)
        walk._previous, walk._waiting = self._previous, dict(self._waiting)
        walk._pairs, walk._order = dict(self._pairs), dict(self._order)
        for n, out in enumerate(messages, self.count):
            walk._pair(n, out)
            walk._follow(n, out)
        walk.count = self.count + len(messages)
        return walk

    def find_violations(self) -> dict[str, str]:
        """Broken rules with their messages (rule -> text), if the prompt ends here."""
        pairs, order = dict(self._pairs), dict(self._order)
        if any(self._waiting.values()):
            pairs.setdefault("W2", "the last calls have no result")
        if self._previous == "assistant":
            order.setdefault("W7", "the last message is the assistant's")
        return pairs | order

    def _pair(self, n: int, out: PlannedMessage) -> None:
        """Check W1 and W2: each result has its call before it, and each call its results right after it."""
        message, _, calls = out
        wrong, waiting = self._pairs, self._waiting
        if message is not None and message.is_result:
            call_id = message.call_id or ""
            if not waiting.get(call_id):
                wrong.setdefault("W1", f"message {n}: a tool result without its call")
            else:
                waiting[call_id] -= 1
            return
        if waiting:
            if any(waiting.values()):
                wrong.setdefault("W2", f"message {n}: calls before it are left without a result")
            waiting.clear()
        if calls and message is not None:
            for call in message.calls:
                waiting[call.id] = waiting.get(call.id, 0) + 1

    def _follow(self, n: int, out: PlannedMessage) -> None:
        """Check W4, W5, W6 and W8: the order of roles, and no empty answer. Note the last role for W7."""
        message, text, calls = out
        wrong, model, previous = self._order, self.model, self._previous
        role = message.role if message is not None else "user"
        if role == "assistant":
            if not calls and not text and not (message and message.media_count):
                wrong.setdefault("W8", f"message {n}: an empty assistant message")
        elif role == "user":
            if previous == "tool" and model.after_tool != "user":
                wrong.setdefault("W6", f"message {n}: a user message after a tool result")
        elif n and role in ("system", "developer") and previous not in ("system", "developer"):
            wrong.setdefault("W4", f"message {n}: a system message that is not in front")
        if model.alternate and role == previous and role in ("user", "assistant"):
            wrong.setdefault("W5", f"message {n}: two {role} messages in a row")
        self._previous = role


def check(outgoing: Sequence[PlannedMessage], original: Sequence[Message], model: Model) -> None:
    """Raise RuleBroken if the plan breaks a rule that the original does not break."""
    broken = _find_violations(outgoing, model)
    if broken:
        raise_new_violations(broken, _find_violations(as_outgoing(original), model))
    _check_kept(outgoing, original)


def raise_new_violations(broken: dict[str, str], before: dict[str, str]) -> None:
    """Raise RuleBroken if a rule is broken now that was not broken before."""
    for rule, message in broken.items():
        if rule not in before:
            raise RuleBroken(rule, message)


def as_outgoing(original: Sequence[Message]) -> list[PlannedMessage]:
    """The original messages as the rules see them."""
    return [PlannedMessage(m, m.text, bool(m.calls)) for m in original]


def _find_violations(plan: Sequence[PlannedMessage], model: Model) -> dict[str, str]:
    """Broken rules with their messages (rule -> text)."""
    return RuleChecker(model).extend(plan).find_violations()


def _check_kept(plan: Sequence[PlannedMessage], original: Sequence[Message]) -> None:
    """Check that system messages, the last user message and the last message stay, and begin as sent."""
    kept = {id(out.message): out for out in plan if out.message is not None}
    at = find_last_user(original)
    last_user = original[at] if at >= 0 else None
    for message in original:
        if message.is_system or message is last_user or message is original[-1]:
            check_message_kept(message, kept.get(id(message)), is_prompt=message is last_user)
    if not any(out.role == "user" for out in plan) and last_user is not None:
        raise RuleBroken("kept", "no user message is left")


def check_message_kept(message: Message, out: PlannedMessage | None, *, is_prompt: bool) -> None:
    """Raise RuleBroken if a message that must stay is gone, or has another beginning."""
    if out is None:
        raise RuleBroken("kept", f"the {message.role} message that must stay is gone")
    if message.is_result and not is_prompt:
        return  # the newest result may be shortened, but never be gone
    if not out.text.startswith(message.text):
        raise RuleBroken("kept", f"the {message.role} message that must stay has another text")
