"""Statistics of each tenant's agents, in memory: how often they fetch a cut result again, and how long they go on.

A new session begins with them. An agent is known by the names of its tools and the beginning of its system prompt.
Later parts of a system prompt often name a folder or a date. After a restart the lengths come from the store
(`exchange.learned_lengths`), and the page faults are counted from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TypeVar

from proxy.chat.message import Request
from proxy.context.branch_state import BranchState

K = TypeVar("K")
V = TypeVar("V")

MAX_AGENTS = 1_000
"""Limit on the agents that are remembered, the last used."""
AGENT_CHARS = 100
"""Characters of a system prompt that tell agents apart."""
MAX_FAULT_SESSIONS = 20
"""Limit on the sessions of an agent whose page faults count, the last used. An agent whose results are not cut any more
shows nothing new: after so many sessions they are tried again."""
MAX_SORTS = 400
"""Limit on the sorts of results of a session that are remembered: clients choose the names of tools. A tool has two."""
MAX_LENGTHS = 100
"""Limit on the conversations of an agent whose lengths are remembered, the last used."""


class AgentStatistics:
    """Page faults of the last sessions of an agent, and the lengths of its last conversations."""

    def __init__(self) -> None:
        self._faults: dict[int, dict[str, tuple[int, int]]] = {}
        """(cut results added up over requests, cut results that were fetched again), by session and sort."""
        self._lengths: dict[int, int] = {}
        """Requests by session."""

    def note_faults(self, session: str, state: BranchState) -> None:
        """Note the counts of a session, those of a session without any too. Of its branches the last one counts."""
        key = hash(session)
        counts = _use_entry(self._faults, key, dict, MAX_FAULT_SESSIONS)
        if state.exposed or state.refetched or counts:
            sorts = islice({**state.exposed, **state.refetched}, MAX_SORTS)
            self._faults[key] = {sort: (state.exposed.get(sort, 0), state.refetched.get(sort, 0)) for sort in sorts}

    def sum_other_faults(self, session: str) -> Mapping[str, tuple[int, int]]:
        """The sums of the agent's other sessions, by sort."""
        sums: dict[str, tuple[int, int]] = {}
        for key, counts in self._faults.items():
            if counts and key != hash(session):
                for sort, (cut, fetched) in counts.items():
                    before = sums.get(sort, (0, 0))
                    sums[sort] = before[0] + cut, before[1] + fetched
        return sums

    def note_length(self, session: str, length: int) -> None:
        """Note that a session has come to `length` requests. Of its branches the longest counts."""
        key = hash(session)
        self._lengths[key] = max(length, _use_entry(self._lengths, key, int, MAX_LENGTHS))

    def list_lengths(self) -> tuple[int, ...]:
        """Requests of the last `MAX_LENGTHS` conversations, for `schedule.estimate_requests_left`."""
        return tuple(self._lengths.values())


class KnownAgents:
    """The statistics of each agent, bounded; those of the agents used last stay."""

    def __init__(self) -> None:
        self._agents: dict[int, AgentStatistics] = {}

    def find(self, tenant: str, request: Request) -> AgentStatistics:
        """Return the statistics of the agent that sends this request; those of an unknown agent are empty."""
        return _use_entry(self._agents, _hash_agent(tenant, request), AgentStatistics, MAX_AGENTS)


def _hash_agent(tenant: str, request: Request) -> int:
    """A hash of what tells agents apart, in this process: clients choose names of any length."""
    first = request.messages[0]
    return hash((tenant, frozenset(request.tool_names), first.text[:AGENT_CHARS] if first.is_system else ""))


def _use_entry(table: dict[K, V], key: K, make: Callable[[], V], max_entries: int) -> V:
    """Return the value of a key, made if there was none, as the last used one; above `max_entries` the first one
    leaves.

    A plain dict keeps that order too. All lengths are read with each request, and an OrderedDict's linked list took 1 %
    of a small request for that.
    """
    value = table.pop(key) if key in table else make()
    table[key] = value
    if len(table) > max_entries:
        del table[next(iter(table))]
    return value
