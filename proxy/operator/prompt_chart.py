"""Chart of a branch's next prompt: each group is a bar of its messages, with the tokens and the edit of each."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from proxy.chat.chain import public_id
from proxy.chat.message import Message
from proxy.chat.tokens import TokenCounter
from proxy.context.fit import find_window
from proxy.context.plan import Edit
from proxy.exchange.services import Services
from proxy.operator import show
from proxy.operator.find_session import SelectedBranch, find_branch, run_off_loop
from proxy.operator.preview import Preview, preview_prompt
from proxy.operator.response_models import GroupListItem, PromptStatus

MAX_BARS = 1000
"""Limit on the groups that are drawn, the newest."""
MAX_INSERT_CHARS = 4000
"""Characters of an inserted text that are shown."""


class ChartSegment(Struct, frozen=True, omit_defaults=True):
    """A message as a piece of a bar. kind: system, user, thinking (the model's text), tool, or tools for the
    definitions. tokens: as received. sent: tokens as it would go out. stage, reason: why these differ."""

    kind: str
    tokens: int
    sent: int
    id: str = ""
    status: PromptStatus = "in"
    pinned: bool = False
    stage: str = ""
    reason: str = ""


class ChartBar(Struct, frozen=True):
    """A group and its messages, in order."""

    group: GroupListItem
    pieces: list[ChartSegment]


class ChartInsert(Struct, frozen=True):
    """A text of the proxy in the next prompt. after: the id of the message that the text is in or after, "" for
    none."""

    source: str
    tokens: int
    text: str
    after: str


class PromptChart(Struct, frozen=True):
    """The next prompt as a chart. fixed: tools and system messages. earlier: number of groups before the first bar.
    limit: tokens that the model takes. budget: the share of the limit, 0 to 1, that the policy fills. waits: the model
    waits for results, not for the user."""

    session: str
    branch: str
    policy: str
    model: str
    limit: int | None
    budget: float
    tokens: int
    sent: int
    fixed: list[ChartSegment]
    bars: list[ChartBar]
    earlier: int
    inserts: list[ChartInsert]
    refused: str
    waits: bool


async def build_chart(services: Services, tenant: str, session: str, *, branch: str | None = None) -> PromptChart:
    """Return the chart of the prompt that would go out if the client sent its history now. Raises NotFound;
    StoreUnavailable passes through."""
    selected = await find_branch(services, tenant, session, branch)
    preview = await preview_prompt(services, selected)
    reported = await show.read_reported_tokens(services, selected)
    return await run_off_loop(len(selected.keys), lambda: _draw_chart(selected, preview, reported))


def _draw_chart(selected: SelectedBranch, preview: Preview, reported: Mapping[bytes, int]) -> PromptChart:
    turn, plan = preview.turn, preview.turn.prompt.plan
    edits = {} if turn.prompt.observed else preview.edits
    pieces = [_make_segment(selected, turn.token_counter, edits, n) for n in range(len(selected.keys))]
    fixed = [piece for piece in pieces if piece.kind == "system"]
    tools = turn.token_counter.count_tools(selected.request.tools)
    if tools:
        fixed.insert(0, ChartSegment("tools", tools, tools))
    bars = [
        ChartBar(line, [piece for piece in pieces[one.start : one.end] if piece.kind != "system"])
        for one, line in zip(selected.groups, show.build_group_items(selected, preview, reported), strict=True)
    ]
    # The plan's indices are those of the messages that upstream sees, including hidden rounds that are put back.
    sent = turn.enriched.spliced
    names = ["" if m.is_system else public_id(k) for m, k in zip(sent.request.messages, sent.keys, strict=True)]
    inserts = [
        ChartInsert(
            source=one.source,
            tokens=turn.token_counter.count_text(one.text),
            text=one.text if len(one.text) <= MAX_INSERT_CHARS else one.text[: MAX_INSERT_CHARS - 1] + "…",
            after=names[index] if 0 <= index < len(names) else "",
        )
        for index, one in ([] if turn.prompt.observed else plan.placed_inserts)
    ]
    return PromptChart(
        session=selected.record.session,
        branch=selected.branch.name,
        policy=turn.enriched.policy.name,
        model=turn.request.model,
        limit=find_window(turn.enriched.policy, turn.model),
        budget=turn.enriched.policy.budget,
        tokens=plan.before,
        sent=turn.prompt.sent_tokens,
        fixed=fixed,
        bars=bars[-MAX_BARS:],
        earlier=max(0, len(bars) - MAX_BARS),
        inserts=inserts,
        refused=plan.refusal or turn.prompt.fallback or "",
        waits=bool(selected.request.messages[-1].calls),
    )


def _make_segment(
    selected: SelectedBranch, token_counter: TokenCounter, edits: Mapping[bytes, Edit], index: int
) -> ChartSegment:
    message, chain_key = selected.request.messages[index], selected.keys[index]
    size = token_counter(message)
    if message.is_system:
        return ChartSegment("system", size, size)
    edit = edits.get(chain_key)
    segment = ChartSegment(
        kind=_classify_message(message),
        tokens=size,
        sent=size if edit is None else edit.after,
        id=public_id(chain_key),
        status=show.find_status(edit, chain_key, selected.operator_decisions),
        pinned=chain_key in selected.operator_decisions.find_pins(selected.branch.state.pins),
    )
    if edit is None:
        return segment
    return msgspec.structs.replace(segment, stage=edit.stage, reason=edit.reason)


def _classify_message(message: Message) -> str:
    return {"assistant": "thinking", "tool": "tool", "function": "tool"}.get(message.role, "user")
