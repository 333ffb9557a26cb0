"""The conversation as it would go out now: its messages, the edits in force, and the facts about both.

An agent sends its whole history again, with two messages more. The work of a request must not grow with the history. So
the facts of the last request are kept with it (`Request.memo_values`, which the next request of the history carries)
and are extended by the new messages. A value is copied before it is extended. So two requests that continue the same
prefix do not disturb each other, even in two threads.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from proxy.chat import chain, group, json_spans
from proxy.chat.group import Group, Step, is_observation
from proxy.chat.message import Message, Request
from proxy.chat.tokens import PER_MESSAGE, TokenCounter
from proxy.context.models import Model
from proxy.context.plan import Edit, RewriteInputs

T = TypeVar("T")
MemoValues = dict[str, tuple[int, object, Any]]
"""Facts about messages, by name: (number of messages at the front that it covers, owner, value)."""


class History(msgspec.Struct, eq=False):
    """Facts that the messages of a request give by themselves. They are taken over from the last request for a shared
    prefix.

    Nothing in a History changes once handed out, except that `memo_values` and `edited_history` are filled.
    """

    messages: tuple[Message, ...]
    keys: tuple[bytes, ...]
    token_counter: TokenCounter
    observation: re.Pattern[str] | None
    original_tokens: list[int]
    """Tokens of each message."""
    request_counts: list[int]
    """Number of assistant messages up to and including each message."""
    is_result: list[bool]
    assistant_indexes: list[int]
    """Indexes of the assistant messages."""
    marked_indexes: list[int]
    """Indexes of the messages that bear a cache mark of the client's."""
    last_user_index: int
    """Index of the last user message, -1 for none."""
    steps: list[Step]
    groups: list[Group]
    memo_values: MemoValues
    edited_history: EditedHistory | None = None
    """These messages, or a prefix of them, with the edits that were in force then."""


class EditedHistory(msgspec.Struct, eq=False):
    """The first `message_count` messages with the branch's edits applied."""

    message_count: int
    branch_edits: Mapping[bytes, Edit]
    """The edits that the branch has."""
    branch_edit_count: int
    """Number of edits in `branch_edits` when this was made."""
    edits: Mapping[bytes, Edit]
    """The edits in force on these messages."""
    tokens: list[int]
    """Tokens of each message as it goes out."""
    marks: list[bytes]
    """The mark of each message that goes out."""
    sizes: list[int]
    """Tokens of each message that goes out; messages that are gone have no entry."""
    lossy_edit_count: int
    """Number of edits that take out something that is nowhere else in the prompt."""
    is_complete: bool
    """True if no edit takes away a message or its calls."""
    stages: frozenset[str]
    """Stages that made the edits in force."""
    memo_values: MemoValues


class BranchMemory(msgspec.Struct, frozen=True):
    """The part of a `BranchState` that stages and injections read."""

    state: str | None = None
    """The newest STATE block."""
    helper_answers: Mapping[str, str] = {}
    """Answers of a helper model, by the id of the Ask."""
    note_counts: Mapping[str, int] = {}
    """Count of each kind of note when it was last given."""
    pins: frozenset[bytes] = frozenset()
    """Chain keys of messages that must stay."""
    breakpoints: frozenset[int] = frozenset()
    """The positions in the last prompt at which a breakpoint of the proxy stood."""
    is_new_fork: bool = False
    """As in `BranchState`."""


class FaultCounts(msgspec.Struct, frozen=True):
    """Counts of cut results, and of those that were fetched again, by sort (see `page_faults`)."""

    exposed: Mapping[str, int] = {}
    """Cut results in the session's requests, summed over these requests."""
    refetched: Mapping[str, int] = {}
    """Cut results that were fetched again in this session."""
    of_agent: Mapping[str, tuple[int, int]] = {}
    """(`exposed`, `refetched`) of the agent's other sessions together."""
    refetched_keys: frozenset[bytes] = frozenset()
    """Chain keys of the results that fetched a cut result again, and of the calls that fetched nothing else."""


class View(msgspec.Struct, frozen=True, eq=False):
    """The conversation as it would go out now, old edits applied.

    `messages`, `keys`, `tokens`, `original_tokens`, `request_counts` and `is_result` have one entry for each message.
    The fields are in five groups: the conversation, the prompt's size, the policy and model, what came with the
    request (`inputs`), and what earlier requests have left (`branch`, `faults`). A stage reads a conversation by the
    View alone. So the View has the lists of its `history`, and of its `edited_history`, as fields of its own."""

    request: Request
    messages: tuple[Message, ...]
    keys: Sequence[bytes]
    original_tokens: Sequence[int]
    """Tokens of each message as received."""
    request_counts: Sequence[int]
    """Number of requests of the branch up to each message. Differences of these numbers are ages."""
    is_result: Sequence[bool]
    """True for tool results, and for user messages that are really tool output."""
    steps: Sequence[Step]
    groups: Sequence[Group]
    history: History
    """Facts about the messages alone, taken over from the request before."""
    edits: Mapping[bytes, Edit]
    """The edits in force."""
    tokens: Sequence[int]
    """Tokens of each message as it would go out, 0 if it is gone."""
    edited_history: EditedHistory
    """Facts about the messages with the edits in force, taken over from the request before."""

    prefix_tokens: int
    """Tokens before the messages (tools)."""
    tool_tokens: int
    """Tokens of tool definitions that come before the messages with the first edit, and move the whole prefix."""
    insert_tokens: int
    """Tokens of the inserts that go out with the prompt."""
    cached_tokens: int
    """Tokens at the front that the provider's cache is expected to hold."""
    warm_tokens: int
    """Tokens at the front that the cache would hold if it had not expired."""
    budget: int | None
    """The most tokens that the prompt should have, None if no limit is known."""
    limit: int | None
    """Tokens that the prompt must not pass: the window less the room for the answer. None if no window is known."""

    model: Model
    token_counter: TokenCounter
    literal: bool
    """True if edits are made again with every request."""
    now: float
    """Time of the request, in seconds."""
    inputs: RewriteInputs
    """The things that came with the request. `times` and `strategies` have one entry for each message."""
    branch: BranchMemory
    faults: FaultCounts
    _computed: dict[object, Any] = {}

    def __post_init__(self) -> None:
        force_setattr(self, "_computed", {})  # a changed copy of a View computes its own

    def compute_once(self, name: object, compute: Callable[[], T]) -> T:
        """Return the value of `compute`, computed once for a View. A stage and its asks and notes share it. The value
        does not refer to the View, which would make a cycle. name: hashable."""
        if name not in self._computed:
            self._computed[name] = compute()
        value: T = self._computed[name]
        return value

    def memo(self, name: str, compute: Callable[[int, T | None], T], owner: object = None) -> T:
        """Return a value that `compute` computes from the messages alone, incrementally.

        compute: called with the number of messages at the front that an earlier request covered, and with the value for
        them. It returns the value for all messages, and does not change the value it was given. owner: the asker, if
        another asker would get another value.
        """
        return _extend_memo(self.history.memo_values, name, len(self.messages), compute, owner)

    def memo_edited(self, name: str, compute: Callable[[int, T | None], T], owner: object = None) -> T:
        """Return a value that depends on the edits in force too, as `memo`, kept until another edit is."""
        applied = self.edited_history
        if applied.edits is self.edits and applied.tokens is self.tokens:
            return _extend_memo(applied.memo_values, name, len(self.messages), compute, owner)
        return compute(0, None)

    @property
    def active_start(self) -> int:
        """The index at which the newest group begins."""
        return self.groups[-1].start if self.groups else 0

    @property
    def total(self) -> int:
        """Tokens of the whole prompt as it would go out."""
        return self.prefix_tokens + self.insert_tokens + sum(self.tokens)

    def count_served_tokens(self) -> list[int]:
        """The cached tokens that are still served if a message is edited, for each message.

        If any prefix matches, these are all tokens before the message. If a cache ends at explicit breakpoints,
        only a prefix that ends with a marked message counts (OpenAI's and Anthropic's caching pages).
        After the cached tokens an edit costs none of them. If tool definitions come with the edit, only the tokens in
        front of the messages count. Nothing is served of a prefix below the provider's minimum.
        """
        least = self.model.min if self.model.cache != "none" else 0
        if self.tool_tokens:
            front = min(self.cached_tokens, self.prefix_tokens)
            return [front if front >= least else 0] * len(self.messages)
        at = served = self.prefix_tokens
        if self.model.cache != "breakpoint":
            ends = list(accumulate(self.tokens[:-1], initial=at))
            within = bisect_right(ends, self.cached_tokens)
            fronts = [end if end >= least else 0 for end in ends[:within]]
            return [*fronts, *[self.cached_tokens] * (len(ends) - within)]
        fronts = []
        position = 0
        for n, (message, size) in enumerate(zip(self.messages, self.tokens, strict=True)):
            behind = at >= self.cached_tokens  # the result ends before the message, and is not changed
            fronts.append(self.cached_tokens if behind else served if served >= self.model.min else 0)
            at += size
            if (message.has_cache_mark or position in self.branch.breakpoints) and at <= self.cached_tokens:
                served = at
            edit = self.find_edit(n)
            position += edit is None or edit.action != "gone"
        return fronts

    def find_edit(self, index: int) -> Edit | None:
        """The edit in force on messages[index]. System messages have none, because they share their neighbour's key."""
        return None if self.messages[index].is_system else self.edits.get(self.keys[index])

    def leaves_out(self, index: int, edits: Mapping[bytes, Edit] | None = None) -> bool:
        """True if messages[index] leaves the prompt. edits: these count, in place of those in force."""
        if edits is None:
            edits = self.edits
        edit = None if self.messages[index].is_system else edits.get(self.keys[index])
        return edit is not None and edit.action == "gone"


def _extend_memo(facts: MemoValues, name: str, count: int, make: Callable[[int, T | None], T], owner: object) -> T:
    begin, whose, value = facts.get(name, (0, owner, None))
    if whose is not owner:
        begin, value = 0, None
    if begin < count or value is None:
        value = make(begin, value)
        facts[name] = (count, owner, value)
    made: T = value
    return made


def count_edited_tokens(view: View, index: int, text: str) -> int:
    """Tokens of messages[index] with another text; its calls, reasoning and media stay.

    The tokens are counted once for a text, because literal policies make the same edits with every request.
    """
    message = view.messages[index]
    size = PER_MESSAGE + count_text_tokens(view, message, text)
    if message.calls or message.reasoning or message.media_count:
        size += view.original_tokens[index] - PER_MESSAGE - count_text_tokens(view, message, message.text)
    return size


def count_text_tokens(view: View, message: Message, text: str) -> int:
    """Tokens of a text that goes into a message, remembered with the message."""
    return message.derive(lambda _: view.token_counter.count_text(text), ("count", view.token_counter, text))


_HISTORY_MEMO = "history"


def build_history(
    request: Request, keys: Sequence[bytes], token_counter: TokenCounter, observation: re.Pattern[str] | None
) -> History:
    """The facts that the request's messages give by themselves. observation: see `Policy`."""
    messages, keys = request.messages, tuple(keys)
    known: History | None = request.memo_values.get(_HISTORY_MEMO)
    if known is None or not (
        known.token_counter is token_counter
        and known.observation is observation
        and messages[: len(known.messages)] == known.messages
        and keys[: len(known.keys)] == known.keys
    ):
        known = None
    elif len(messages) == len(known.messages):
        return known
    extended = request.memo_values[_HISTORY_MEMO] = _extend_history(request, keys, token_counter, observation, known)
    return extended


def _extend_history(
    request: Request,
    keys: tuple[bytes, ...],
    token_counter: TokenCounter,
    observation: re.Pattern[str] | None,
    known: History | None,
) -> History:
    messages = request.messages
    begin = len(known.messages) if known else 0
    new = messages[begin:]
    requests = [*known.request_counts] if known else []
    answers = [*known.assistant_indexes] if known else []
    marked = [*known.marked_indexes] if known else []
    prompt = known.last_user_index if known else -1
    count = len(answers)
    for n, message in enumerate(new, begin):
        if message.role == "assistant":
            count += 1
            answers.append(n)
        elif message.role == "user" and not group.is_beside_results(messages, n):
            prompt = n
        if message.has_cache_mark:
            marked.append(n)
        requests.append(count)
    results = [m.is_result or is_observation(messages, n, observation) for n, m in enumerate(new, begin)]
    return History(
        messages=messages,
        keys=keys,
        token_counter=token_counter,
        observation=observation,
        original_tokens=[*(known.original_tokens if known else ()), *token_counter.count_each(new)],
        request_counts=requests,
        is_result=[*(known.is_result if known else ()), *results],
        assistant_indexes=answers,
        marked_indexes=marked,
        last_user_index=prompt,
        steps=group.split_steps(messages, known.steps if known else ()),
        groups=_find_groups(request, keys, observation, known),
        memo_values=dict(known.memo_values) if known else {},
        edited_history=known.edited_history if known else None,
    )


def _find_groups(
    request: Request, keys: tuple[bytes, ...], observation: re.Pattern[str] | None, known: History | None
) -> list[Group]:
    """The groups of the client's request if no message was added or left out. The memo itself is not changed."""
    count, found = request.read_memo(group.GROUPS_MEMO, (keys[0], observation))
    if found is not None and count == len(request.messages):
        groups: list[Group] = found
        return groups
    return group.split_groups(request.messages, keys, observation, known.groups if known else ())


def apply_edits(history: History, edits: Mapping[bytes, Edit]) -> EditedHistory:
    """The messages with those of the branch's edits that concern them."""
    known = history.edited_history
    if known is not None and not (
        (known.branch_edits is edits or not (known.branch_edits or edits)) and known.branch_edit_count == len(edits)
    ):
        known = None
    if known is not None and known.message_count == len(history.messages):
        return known
    extended = history.edited_history = _extend_edited_history(history, edits, known)
    return extended


def with_edits(view: View, edits: Mapping[bytes, Edit]) -> View:
    """The view with other edits in force, which has facts of its own about the messages with these edits."""
    if edits is view.edits:
        return view
    applied = _extend_edited_history(view.history, edits, None)
    applied.edits = edits
    return replace(view, edits=edits, tokens=applied.tokens, edited_history=applied)


def keep_edited_history(edited: View, branch_edits: Mapping[bytes, Edit]) -> None:
    """Keep the facts about a view with new edits for the next request. branch_edits: those of the branch then."""
    applied = edited.history.edited_history = edited.edited_history
    applied.branch_edits, applied.branch_edit_count = branch_edits, len(branch_edits)
    # In the order of the messages, as after a restart: the order of later edits follows from it.
    applied.edits = {key: edited.edits[key] for key in edited.keys if key in edited.edits}


def _extend_edited_history(
    history: History, branch_edits: Mapping[bytes, Edit], known: EditedHistory | None
) -> EditedHistory:
    begin = known.message_count if known else 0
    tokens = [*known.tokens] if known else []
    marks = [*known.marks] if known else []
    sizes = [*known.sizes] if known else []
    new: dict[bytes, Edit] = {}
    messages, keys, original_tokens = history.messages, history.keys, history.original_tokens
    for n in range(begin, len(messages)):
        message, size = messages[n], original_tokens[n]
        edit = branch_edits.get(keys[n]) if branch_edits and not message.is_system else None
        if edit is not None:
            new[keys[n]] = edit
            size = edit.after
        tokens.append(size)
        if edit is None or edit.action != "gone":
            marks.append(compute_mark(message, edit))
            sizes.append(size)
    stages = known.stages if known else frozenset()
    return EditedHistory(
        message_count=len(messages),
        branch_edits=branch_edits,
        branch_edit_count=len(branch_edits),
        edits={**known.edits, **new} if known and new else known.edits if known else new,
        tokens=tokens,
        marks=marks,
        sizes=sizes,
        lossy_edit_count=(known.lossy_edit_count if known else 0) + sum(edit.is_lossy for edit in new.values()),
        is_complete=(not known or known.is_complete)
        and not any(e.action in ("gone", "text_only") for e in new.values()),
        stages=stages.union(edit.stage for edit in new.values()) if new else stages,
        memo_values=dict(known.memo_values) if known and not new else {},
    )


_CACHE_MARK = re.compile(
    rb',\s*"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:\{[^{}]*\}|null)'
    rb'|"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:\{[^{}]*\}|null)\s*,\s*'
)
"""A cache mark with one comma. Within a string its quotes would be escaped."""
_ONE_TEXT_BEGIN = re.compile(rb'\[\s*\{\s*"type"\s*:\s*"text"\s*,\s*"text"\s*:\s*(?=")')
_JSON = msgspec.json.Decoder(msgspec.Raw)


def compute_unmarked_form(message: Message) -> bytes:
    """The form of a message without cache marks: providers cache a prompt without them, and clients move them.

    A client that moves a mark also turns a text into a list of one text and back, which is the same prompt.
    """
    if not message.has_cache_mark and message.part_count != 1:
        return message.form
    return message.derive(_hash_unmarked)


def _hash_unmarked(message: Message) -> bytes:
    raw = _CACHE_MARK.sub(b"", message.raw) if message.has_cache_mark else message.raw
    content = json_spans.read_value(raw, "content") if message.part_count == 1 else None
    text = _find_one_text(content) if content is not None else None
    return chain.compute_form(raw if text is None else json_spans.set_member(raw, "content", text))


def _find_one_text(content: bytes) -> bytes | None:
    """The string of a list of one text; None for another value. A pattern of the whole would take a step for each
    escape, and no other request would be read meanwhile."""
    begin = _ONE_TEXT_BEGIN.match(content)
    if begin is None:
        return None
    text = content[begin.end() :].removesuffix(b"]").rstrip().removesuffix(b"}").rstrip()
    try:
        _JSON.decode(text)
    except ValueError:
        return None
    return text


def compute_mark(message: Message, edit: Edit | None) -> bytes:
    """16 bytes that change whenever the message's outgoing bytes change, except for cache marks."""
    if edit is None:
        return compute_unmarked_form(message)
    return message.derive(
        lambda m: chain.compute_form(
            compute_unmarked_form(m) + edit.action.encode() + (edit.text or "").encode("utf-8", "surrogatepass")
        ),
        ("mark", edit),
    )


def add_texts_to_mark(mark: bytes, texts: Sequence[str]) -> bytes:
    """The mark of a message that has these texts after it. The system prompt of literal policies has such texts."""
    for text in texts:
        mark = chain.compute_form(mark + text.encode("utf-8", "surrogatepass"))
    return mark


def count_common_marks(marks: tuple[bytes, ...], other_marks: tuple[bytes, ...]) -> int:
    """Number of marks at the front that are the same in both."""
    low, high = 0, min(len(marks), len(other_marks))
    if marks[:high] == other_marks[:high]:
        return high
    while high - low > 1:  # one[:low] is the same, one[:high] is not
        middle = (low + high) // 2
        if marks[low:middle] == other_marks[low:middle]:
            low = middle
        else:
            high = middle
    return low
