"""Bindings of reasoning to its prompt: stored for each answer, and checked before a prompt is sent (rule W15).

Each token of an answer is stored with a hash of the prompt as it was sent, and with one of the prompt as the client had
it. So the proxy knows before it sends a prompt whether that breaks a binding, and whether its own change does or the
client's. A token of messages that did not go through the proxy was made after the client's own prompt.

A client may change its own conversation: the provider judges that. Reasoning that the proxy would break is left out
now and for ever, or the branch loses its edits, whichever costs fewer tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from proxy.dialects.base import HASH_BYTES, Binding, BindingTrace, extend_to_newest, find_broken
from proxy.dialects.known_prefix import PREFIXES, TRACED, HistoryMemo, PrefixMemo
from proxy.errors import StoreUnavailable
from proxy.exchange import bound_reasoning, exchange_rows
from proxy.exchange.bound_reasoning import hash_token
from proxy.exchange.dialect import is_bound_answer
from proxy.exchange.fallback import FallbackReason, count_fallback
from proxy.exchange.services import LARGE_BODY_BYTES, Services
from proxy.exchange.turn import Turn
from proxy.sessions import tool_offer as offers
from proxy.store.base import Row
from proxy.store.bindings import BindingRow

UNREADABLE: Final = (ValueError, KeyError, TypeError, RecursionError)
"""Errors of a body in which no reasoning can be found; the upstream judges it."""


class Judgement(msgspec.Struct, frozen=True):
    """The reasoning that a prompt would break by changes of the proxy."""

    tokens: tuple[str, ...] = ()
    """All tokens of the prompt, in order."""
    broken: tuple[str, ...] = ()
    """The broken ones among them."""
    broken_without_plan: tuple[str, ...] = ()
    """The tokens that the client's own bytes would break, since they were made after prompts of the proxy."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """The tokens that have to leave, so that no gap is left."""
        return find_run(self.tokens, self.broken)


def find_run(tokens: Sequence[str], broken: Collection[str]) -> tuple[str, ...]:
    """The broken tokens and all before or all after them, whichever are fewer: a gap is refused."""
    if not broken:
        return ()
    last = max(n for n, token in enumerate(tokens) if token in broken)
    front, end = tuple(tokens[: last + 1]), tuple(extend_to_newest(tokens, broken))
    return end if len(end) < len(front) else front


# Before a prompt is sent.


async def judge_prompt(services: Services, turn: Turn) -> Judgement:
    """The reasoning that the turn's prompt would break."""
    if not _is_kept(turn):
        return Judgement()
    try:
        sent = (await _trace(services, turn, turn.prompt.outgoing)).bindings
        own = (await _trace(services, turn, turn.original)).bindings
    except UNREADABLE:
        return Judgement()
    known = await _find_known(services, turn, own, sent)
    return Judgement(
        tokens=tuple(sent),
        broken=tuple(_find_ours(turn, find_broken(sent, known), own)),
        broken_without_plan=tuple(_find_ours(turn, find_broken(own, known), own)),
    )


def _is_kept(turn: Turn) -> bool:
    """True if bindings matter: a branch whose prompts were always the client's own has none to be broken."""
    return turn.enriched.policy.mode == "rewrite" or bound_reasoning.has_changed_prompts(turn)


async def _trace(services: Services, turn: Turn, body: bytes) -> BindingTrace:
    """The bindings in a body, read once for each; in a worker thread where that takes long."""
    memo = _find_memo(turn, body)
    known = memo.find_prefix(TRACED, body) if memo is not None else None
    new = len(body) - (len(known.text) if known is not None else 0)
    if turn.traces.get(id(body), (b"", None))[0] is body or new < LARGE_BODY_BYTES:
        return trace_body(turn, body)
    return await asyncio.get_running_loop().run_in_executor(services.workers, trace_body, turn, body)


def trace_body(turn: Turn, body: bytes) -> BindingTrace:
    """The bindings in a body, read once for each. Raises one of `UNREADABLE`."""
    traced = turn.traces.get(id(body))
    if traced is None or traced[0] is not body:
        traced = turn.traces[id(body)] = (body, turn.dialect.reasoning.trace_prompt(body, _find_memo(turn, body)))
    return traced[1]


def _find_memo(turn: Turn, body: bytes) -> PrefixMemo | None:
    """The known beginnings of a body of the turn; None in a format in which nothing is kept."""
    memo: HistoryMemo | None = turn.wire_request.memo if turn.wire_request is not None else None
    if turn.wire_request is None:
        memo = turn.request.memo_values.setdefault(PREFIXES, HistoryMemo())
    if memo is None:
        return None
    return memo.own if body is turn.original else memo.sent


async def _find_known(
    services: Services, turn: Turn, own: Mapping[str, Binding], sent: Mapping[str, Binding]
) -> dict[str, Binding]:
    """The bindings that are known of the tokens. Those of reasoning that came with new messages, and was not made here,
    are those of the client's own prompt; they are stored."""
    memory = turn.located.branch.live_session.bindings
    names = {token: hash_token(token) for token in {**sent, **own}}
    missing = [token for token, name in names.items() if name not in memory.rows]
    if missing and (not memory.are_read or services.store.shared):
        try:
            async with asyncio.timeout(services.settings.store.read_s):
                rows = await services.store.read_bindings(turn.tenant, turn.located.branch.session)
        except (TimeoutError, StoreUnavailable):
            services.metrics.internal_errors_total.labels(where="bindings").inc()
            rows = []
        else:
            memory.are_read = True
        memory.rows |= {row.token: row for row in rows if row.token not in memory.rows}
        missing = [token for token in missing if names[token] not in memory.rows]
    if missing and memory.are_read:
        new = b"".join(message.raw for message in turn.request.messages[turn.located.known_until + 1 :])
        foreign = {token: own[token] for token in missing if token in own and token.encode() in new}
        turn.pending.rows += _make_rows(services, turn, foreign, foreign)
        memory.has_foreign |= bool(foreign)
    return _find_stored(turn, names)


def _find_stored(turn: Turn, tokens: Iterable[str]) -> dict[str, Binding]:
    """The stored bindings of these tokens, in their order."""
    rows, names = turn.located.branch.live_session.bindings.rows, {hash_token(token): token for token in tokens}
    return {
        token: Binding(row.system_tools, row.chain, names.get(row.predecessor, "gone") if row.predecessor else "")
        for name, token in names.items()
        if (row := rows.get(name)) is not None
    }


def _find_ours(turn: Turn, broken: Sequence[str], own: Mapping[str, Binding]) -> list[str]:
    """The broken tokens whose prompt the client has not changed: the proxy has changed it."""
    known = turn.located.branch.live_session.bindings.rows
    return [
        token
        for token in broken
        if token not in own or known[hash_token(token)].client in (b"", _hash_client(own[token]))
    ]


def _hash_client(binding: Binding) -> bytes:
    parts = (binding.system_tools, binding.chain, binding.after.encode())
    return hashlib.blake2b(b"".join(parts), digest_size=HASH_BYTES).digest()


def costs_less_without_edits(turn: Turn, judged: Judgement) -> bool:
    """True if the branch should go on without its edits and tools: they save less in a request than the reasoning
    takes that would have to leave for them."""
    branch = turn.located.branch
    lost = len(judged.left_out) - len(find_run(judged.tokens, judged.broken_without_plan))
    if turn.prompt.outgoing == turn.original or lost <= 0 or not (branch.state.edits or branch.offers_tools):
        return False
    saved = turn.prompt.plan.before - turn.prompt.plan.after
    return bound_reasoning.estimate_tokens(turn, lost) > saved


def withdraw_edits(services: Services, turn: Turn) -> Turn:
    """Return the turn of a branch that starts again: without edits, and without tools of ours."""
    branch = turn.located.branch
    turn.pending.rows += exchange_rows.make_withdrawn_rows(turn, services.now())
    branch.state = replace(branch.state, edits={}, lasting_edits=None)
    exchange_rows.add_offer_row(turn, offers.NO_TOOLS)
    return turn.without_tools().with_lookups(first_edit_offer=None)


def leave_out_broken(services: Services, turn: Turn, judged: Judgement) -> Turn:
    """Return the turn with a prompt without the reasoning that it would break, now and for ever."""
    if not judged.left_out or turn.dialect.reasoning.drops_broken:
        return turn  # the provider leaves it out itself, and says so
    stripped = _leave_out(services, turn, judged)
    if stripped is None:
        return turn
    if not turn.is_preview:
        count_fallback(services, FallbackReason.BOUND)
    return stripped.with_prompt(fallback=FallbackReason.BOUND)


def leave_out_for_edits(services: Services, turn: Turn, judged: Judgement) -> Turn | None:
    """Return the turn without the reasoning that its new edits break, now and for ever. None if this reasoning has more
    tokens than these edits save, or if it cannot leave.

    It is left out of Responses too, where the provider would do it: the same prompt goes out then as with later
    requests."""
    saved = sum(edit.before - edit.after for edit in turn.prompt.plan.new_edits)
    if bound_reasoning.estimate_tokens(turn, len(judged.left_out)) > saved:
        return None
    return _leave_out(services, turn, judged)


def _leave_out(services: Services, turn: Turn, judged: Judgement) -> Turn | None:
    """Return the turn without the reasoning that its prompt breaks, noted and counted. None if it has to stay."""
    stripped = _strip(turn, turn.prompt.outgoing, judged.tokens, judged.left_out)
    if stripped is None:
        return None
    body, tokens = stripped
    turn.pending.rows += bound_reasoning.remember_refused(services, turn, tokens)
    bound_reasoning.count_left_out(services, turn, len(tokens))
    return turn.with_prompt(outgoing=body, left_out=turn.prompt.left_out + len(tokens))


def _strip(turn: Turn, body: bytes, tokens: Sequence[str], run: Sequence[str]) -> tuple[bytes, tuple[str, ...]] | None:
    """(the body without a run of tokens, these tokens); all tokens leave if the run cannot. None if nothing can."""
    for stripped_tokens in (tuple(run), tuple(tokens)):
        try:
            stripped = turn.dialect.reasoning.strip(body, frozenset(stripped_tokens))
        except UNREADABLE:
            continue
        return None if stripped == body else (stripped, stripped_tokens)
    return None


def make_whole(turn: Turn) -> tuple[bytes, tuple[str, ...]]:
    """(the client's bytes without reasoning that was made after other prompts of the proxy, its tokens)."""
    body = turn.original
    if not turn.has_bound_answers:
        return body, ()
    body = bound_reasoning.leave_out_refused(turn, body)
    try:
        own = trace_body(turn, turn.original).bindings
        remaining = trace_body(turn, body).bindings  # the first of them has lost the reasoning before it
    except UNREADABLE:
        return body, ()
    broken = _find_ours(turn, find_broken(remaining, _find_stored(turn, remaining)), own)
    if not broken or turn.dialect.reasoning.drops_broken:
        return body, ()
    return _strip(turn, body, tuple(remaining), find_run(tuple(remaining), broken)) or (body, ())


# After an answer.


def record_round(turn: Turn, body: bytes, message: bytes | None) -> Turn:
    """Return the turn with the bindings of a round. body: its prompt. message: its answer for upstream."""
    if message is None or not is_bound_answer(message):
        return turn
    try:
        bindings = turn.dialect.reasoning.trace_answer(trace_body(turn, body), message)
    except UNREADABLE:
        return turn
    return turn.with_rounds(bindings={**turn.rounds.bindings, **bindings})


def record_answer(services: Services, turn: Turn, message: bytes) -> list[Row]:
    """Return the rows of the bindings of an answer and its rounds; memory is updated."""
    if not _is_kept(turn):
        return []
    try:
        own: Mapping[str, Binding] = {}
        bindings = turn.rounds.bindings
        if is_bound_answer(message):
            own = turn.dialect.reasoning.trace_answer(trace_body(turn, turn.original), message)
            bindings = bindings or turn.dialect.reasoning.trace_answer(trace_body(turn, turn.prompt.outgoing), message)
    except UNREADABLE:
        return []
    return _make_rows(services, turn, bindings, own)


def _make_rows(
    services: Services, turn: Turn, bindings: Mapping[str, Binding], own: Mapping[str, Binding]
) -> list[Row]:
    """The rows of new bindings; memory is updated. own: the bindings in the client's own prompt."""
    branch, now = turn.located.branch, services.now()
    known = branch.live_session.bindings.rows
    rows: list[Row] = []
    for token, binding in bindings.items():
        name = hash_token(token)
        if name in known:
            continue
        known[name] = row = BindingRow(
            tenant=turn.tenant,
            session=branch.session,
            token=name,
            system_tools=binding.system_tools,
            chain=binding.chain,
            predecessor=hash_token(binding.after) if binding.after else b"",
            client=_hash_client(own[token]) if token in own else b"",
            created_at=now,
        )
        rows.append(row)
    return rows
