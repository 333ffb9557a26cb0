"""Views of any past prompt and of the next one, with a reason for each message that is left out or shortened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from proxy.chat.chain import public_id
from proxy.chat.group import Group, split_groups
from proxy.chat.message import Message, Request
from proxy.chat.tokens import TokenCounter
from proxy.context.operator_edits import NAME
from proxy.context.pins import has_pin_mark
from proxy.context.plan import WHOLE_TEXT_ACTIONS, Edit
from proxy.context.policy import Policy
from proxy.context.render import render_message
from proxy.errors import NotFound
from proxy.exchange import lookups, rebuild_prompt
from proxy.exchange.exchange_rows import SentTexts
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.operator import find_session
from proxy.operator.find_session import SelectedBranch, find_branch
from proxy.operator.preview import Preview, preview_prompt
from proxy.operator.response_models import (
    EditReason,
    GroupListItem,
    PromptDetails,
    PromptInsert,
    PromptMessage,
    PromptStatus,
)
from proxy.operator.session_stats import count_sent_tokens
from proxy.operator.session_titles import make_title
from proxy.sessions.operator_decisions import StoredDecisions, read_decisions
from proxy.store.base import WHOLE_SESSION, EditRow

GROUP_TITLE_CHARS = 100
"""Characters of a group's prompt that form its title in a list."""
TITLE_READ_CHARS = 20_000
"""Characters of a prompt in which its title is looked for."""
EditRows = Mapping[bytes, EditRow]
"""The stored row of each edit, by chain key."""


async def read_past_prompt(
    services: Services,
    tenant: str,
    session: str,
    exchange: str,
    *,
    first: int = 0,
    limit: int | None = None,
    changed: bool = False,
) -> PromptDetails:
    """Return a past exchange's prompt, exact to the byte. first, limit: a page of its messages, without the bodies.
    changed: the page begins at the next change. Raises NotFound; StoreUnavailable passes through, here and below."""
    await find_session.read_session(services, tenant, session)
    rebuilt = await rebuild_prompt.rebuild_prompt(services.store, tenant, session, exchange)
    if rebuilt is None:
        raise NotFound(f"session {session!r} has no exchange {exchange!r}", hint="List its requests.")
    row = rebuilt.exchange
    request = await find_session.parse_request(services, rebuilt.original_body)
    token_counter = services.find_token_counter(lookups.look_up_model(services, row.model))
    since = {edit.key: edit for edit, _ in await services.store.read_edits(tenant, session, row.branch, row.edits)}
    known = await read_decisions(services.store, tenant, session)
    sent = msgspec.json.decode(row.inserts, type=SentTexts)
    is_original = sent.original or row.fallback == "upstream_reject"
    edits = {} if is_original else dict(rebuilt.edits)
    inserts = []
    for index, source, form in sent.inserts:
        text = await services.store.read_form(tenant, session, bytes.fromhex(form)) or b""
        inserts.append(PromptInsert(index, source, text.decode("utf-8", "replace")))
    history = _EditedHistory(
        request, rebuilt.keys, edits, token_counter, known, since, services.policies.get(row.policy)
    )
    changes = history.find_changes(inserts)
    page = _select_page(len(rebuilt.keys), first, limit, changes if changed else None)
    messages = await history.build_messages(page)
    shown = PromptDetails(
        session=session,
        branch=row.branch,
        exchange=exchange,
        policy=row.policy,
        model=row.model,
        tokens_before=row.tokens_before,
        tokens_after=count_sent_tokens(row),
        messages=messages,
        inserts=inserts,
        body=rebuilt.sent_body.decode("utf-8", "replace"),
        original=rebuilt.original_body.decode("utf-8", "replace"),
        refused=row.fallback or "",
        count=len(rebuilt.keys),
        changes=len(changes) + _count_own_messages(rebuilt.keys, inserts),
    )
    return shown if limit is None and first == 0 and not changed else _cut_page(shown, page)


async def preview_next_prompt(
    services: Services,
    tenant: str,
    session: str,
    *,
    branch: str | None = None,
    first: int = 0,
    limit: int | None = None,
    changed: bool = False,
) -> PromptDetails:
    """Return the prompt that would go out if the client sent its history now. The client's next messages are not known:
    messages of source `next` stand for them. first, limit: a page of its messages, without the bodies. changed: the
    page begins at the next change."""
    selected = await find_branch(services, tenant, session, branch)
    preview = await preview_prompt(services, selected)
    turn, plan = preview.turn, preview.turn.prompt.plan
    edits = {} if turn.prompt.observed else preview.edits
    since = await _read_edit_rows(services, selected)
    inserts = _place_inserts(turn)
    history = _EditedHistory(
        turn.request, turn.keys, edits, turn.token_counter, selected.operator_decisions, since, turn.enriched.policy
    )
    changes = history.find_changes(inserts)
    page = _select_page(len(turn.keys), first, limit, changes if changed else None)
    messages = await history.build_messages(page)
    known = len(turn.keys) - preview.stand_ins
    shown = PromptDetails(
        session=session,
        branch=selected.branch.name,
        exchange="",
        policy=turn.enriched.policy.name,
        model=turn.request.model,
        tokens_before=plan.before,
        tokens_after=turn.prompt.sent_tokens,
        messages=[m if m.index < known else msgspec.structs.replace(m, id="", source="next") for m in messages],
        inserts=inserts,
        body=turn.prompt.chat_body.decode("utf-8", "replace"),
        original=turn.request.body.decode("utf-8", "replace"),
        refused=plan.refusal or turn.prompt.fallback or "",
        count=len(turn.keys),
        changes=len(changes) + _count_own_messages(turn.keys, inserts),
    )
    return shown if limit is None and first == 0 and not changed else _cut_page(shown, page)


def _select_page(count: int, first: int, limit: int | None, changes: AbstractSet[int] | None) -> range:
    """Return the indexes of a page of messages. first: negative counts from the end. changes: the page begins at the
    first of these from there on; without one it is empty, after the last message."""
    start = max(0, count + first) if first < 0 else min(first, count)
    if changes is not None:
        start = min((n for n in changes if n >= start), default=count)
    return range(start, count if limit is None else min(count, start + limit))


def _cut_page(prompt: PromptDetails, page: range) -> PromptDetails:
    """Return the prompt with a page's inserts, without bodies. An insert of its own is in the last page."""
    is_last = page.stop == prompt.count
    inserts = [one for one in prompt.inserts if one.index in page or (is_last and not 0 <= one.index < prompt.count)]
    return msgspec.structs.replace(prompt, inserts=inserts, body="", original="", next=None if is_last else page.stop)


def _count_own_messages(keys: Sequence[bytes], inserts: Sequence[PromptInsert]) -> int:
    """Return the number of inserts that are messages of their own."""
    return sum(not 0 <= one.index < len(keys) for one in inserts)


def _place_inserts(turn: Turn) -> list[PromptInsert]:
    """Return a plan's texts of the proxy, each with the index of the client's message that it is in, or -1."""
    places: dict[bytes, int] = {}
    for position, key in enumerate(turn.keys):
        places.setdefault(key, position)
    keys = turn.enriched.spliced.keys
    return [
        PromptInsert(places.get(keys[index], -1) if 0 <= index < len(keys) else -1, insert.source, insert.text)
        for index, insert in ([] if turn.prompt.observed else turn.prompt.plan.placed_inserts)
    ]


async def list_groups(
    services: Services,
    tenant: str,
    session: str,
    *,
    branch: str | None = None,
    status: PromptStatus | Literal[""] = "",
    last: int | None = None,
) -> list[GroupListItem]:
    """Return a branch's groups, oldest first, as in the next prompt. last: the number of the newest ones."""
    selected = await find_branch(services, tenant, session, branch)
    preview, reported = await preview_prompt(services, selected), await read_reported_tokens(services, selected)
    found = await find_session.run_off_loop(len(selected.keys), lambda: build_group_items(selected, preview, reported))
    return [one for one in found if not status or one.status == status][-last if last else 0 :]


async def read_group(
    services: Services, tenant: str, session: str, group: str, *, branch: str | None = None
) -> list[PromptMessage]:
    """Return a group's messages in full. Raises NotFound."""
    selected = await find_branch(services, tenant, session, branch)
    selected_group = next((one for one in selected.groups if one.id == group), None)
    if selected_group is None:
        raise NotFound(f"this branch has no group {group!r}", hint="List its groups.")
    preview = await preview_prompt(services, selected)
    since = await _read_edit_rows(services, selected)
    turn, edits = preview.turn, {} if preview.turn.prompt.observed else preview.edits
    history = _EditedHistory(
        selected.request, selected.keys, edits, turn.token_counter, selected.operator_decisions, since,
        turn.enriched.policy,
    )  # fmt: skip
    return await history.build_messages(range(selected_group.start, selected_group.end))


async def _read_edit_rows(services: Services, selected: SelectedBranch) -> EditRows:
    """Return the rows of the edits in force; the operator's row where there is one."""
    tenant, session = selected.record.tenant, selected.record.session
    rows = {row.key: row for row, _ in await services.store.read_edits(tenant, session, selected.branch.name)}
    for row, _ in await services.store.read_edits(tenant, session, WHOLE_SESSION):
        if row.action == "gone" and (row.key not in rows or rows[row.key].action != "gone"):
            rows[row.key] = row
    return rows


@dataclass(frozen=True, slots=True)
class _EditedHistory:
    """A history, and the edits of the prompt that is made of it."""

    request: Request
    keys: Sequence[bytes]
    """The chain key of each message."""
    edits: Mapping[bytes, Edit]
    """The edits in force in the prompt."""
    token_counter: TokenCounter
    decisions: StoredDecisions
    since: EditRows
    """The rows of edits, which say when they were made."""
    policy: Policy | None
    """The policy, by which messages are joined to groups; None if it is not known any more."""

    def find_changes(self, inserts: Sequence[PromptInsert]) -> set[int]:
        """Return the indexes of the messages that differ from what the client sent."""
        named = enumerate(zip(self.request.messages, self.keys, strict=True))
        edited = {n for n, (m, k) in named if k in self.edits and not m.is_system}
        return edited | {one.index for one in inserts if 0 <= one.index < len(self.keys)}

    async def build_messages(self, page: range) -> list[PromptMessage]:
        """Return one item for each message of the page."""
        return await find_session.run_off_loop(len(self.keys), partial(self._build_messages, page))

    def _build_messages(self, page: range) -> list[PromptMessage]:
        names = _list_group_names(self.request, self.keys, self.policy)
        pins = self.decisions.find_pins(frozenset())
        return [self._build_message(n, names[n], pins) for n in page]

    def _build_message(self, n: int, group: str, pins: AbstractSet[bytes]) -> PromptMessage:
        message, key = self.request.messages[n], self.keys[n]
        edit = None if message.is_system else self.edits.get(key)
        status = find_status(edit, key, self.decisions)
        raw = render_message(message, edit)
        return PromptMessage(
            index=n,
            id="" if message.is_system else public_id(key),
            group=group,
            role=message.role,
            status=status,
            tokens=self.token_counter(message) if edit is None else edit.after,
            pinned=not message.is_system and (key in pins or has_pin_mark(self.request.messages, n)),
            why=_explain_edit(edit, key, self.since.get(key), status),
            content=None if raw is None else _decode_json(raw),
            whole=None if edit is None else _decode_json(message.raw),
        )


def _decode_json(raw: bytes) -> object:
    """Return a message's JSON. A text that only a lenient reader takes (NaN, half a surrogate pair) is read by such a
    reader; any other is returned as text."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        pass
    try:
        found: object = json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")
    return found


def _list_group_names(request: Request, keys: Sequence[bytes], policy: Policy | None) -> list[str]:
    names = [""] * len(keys)
    for one in split_groups(request.messages, keys, policy.observation if policy is not None else None):
        for n in range(one.start, one.end):
            names[n] = one.id
    return names


def find_status(edit: Edit | None, chain_key: bytes, decisions: StoredDecisions) -> PromptStatus:
    """Return the status of a message in a prompt."""
    if edit is None:
        return "in"
    if edit.action != "gone":
        return "changed"
    if chain_key in decisions.removed:
        return "removed"
    return "dropped" if edit.stage == NAME and chain_key in decisions.dropped else "out"


def _explain_edit(edit: Edit | None, chain_key: bytes, row: EditRow | None, status: PromptStatus) -> EditReason | None:
    if edit is None:
        return None
    stored = row if row is not None and row.action == edit.action else None
    return EditReason(
        stage=edit.stage,
        reason=edit.reason,
        action=edit.action,
        tokens_before=edit.before,
        tokens_after=edit.after,
        exchange=stored.exchange if stored is not None else "",
        since=stored.created_at if stored is not None else None,
        find="" if status == "removed" or edit.action in WHOLE_TEXT_ACTIONS else f'recall(id="{public_id(chain_key)}")',
    )


async def read_reported_tokens(services: Services, selected: SelectedBranch) -> dict[bytes, int]:
    """Return tokens of prompt and answer as the provider reported them, by the key of the answer."""
    reported: dict[bytes, int] = {}
    async for exchange in find_session.iter_exchanges(services.store, selected.record.tenant, selected.record.session):
        if exchange.answer and exchange.prompt_tokens is not None:
            reported.setdefault(exchange.answer, exchange.prompt_tokens + (exchange.completion_tokens or 0))
    return reported


def build_group_items(selected: SelectedBranch, preview: Preview, reported: Mapping[bytes, int]) -> list[GroupListItem]:
    """Return the groups of a branch as they are in a planned prompt."""
    turn = preview.turn
    edits = {} if turn.prompt.observed else preview.edits
    return [_build_group_item(selected, one, edits, turn.token_counter, reported) for one in selected.groups]


def _build_group_item(
    selected: SelectedBranch,
    group: Group,
    edits: Mapping[bytes, Edit],
    token_counter: TokenCounter,
    reported: Mapping[bytes, int],
) -> GroupListItem:
    indexes = [n for n in range(group.start, group.end) if not selected.request.messages[n].is_system]
    edits_of_group = [edits.get(selected.keys[n]) for n in indexes]
    states = [
        find_status(edit, selected.keys[n], selected.operator_decisions)
        for edit, n in zip(edits_of_group, indexes, strict=True)
    ]
    distinct_states = set(states)
    sizes = [token_counter(selected.request.messages[n]) for n in indexes]
    reported_tokens = [reported[selected.keys[n]] for n in indexes if selected.keys[n] in reported]
    pins = selected.operator_decisions.find_pins(selected.branch.state.pins)
    prompts = [selected.request.messages[n] for n in indexes if selected.request.messages[n].role == "user"]
    return GroupListItem(
        id=group.id,
        first=group.start,
        messages=len(indexes),
        tokens=sum(sizes),
        sent=sum(size if edit is None else edit.after for size, edit in zip(sizes, edits_of_group, strict=True)),
        status=states[0] if len(distinct_states) == 1 else "changed" if distinct_states else "in",
        pinned=bool(indexes) and all(selected.keys[n] in pins for n in indexes),
        snapshot=reported_tokens[-1] if reported_tokens else None,
        title=_find_title(prompts),
    )


def _find_title(prompts: Sequence[Message]) -> str:
    titles = (make_title(one.text[:TITLE_READ_CHARS], GROUP_TITLE_CHARS) for one in prompts)
    return next(filter(None, titles), "")
