"""What a replay has found, as data: what `--json` writes, and what the table and the picture show.

The names of the fields are the names in the file. `format` is raised when one of them changes its meaning or goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from proxy.replay.bound import BOUNDS
from proxy.replay.play import Contender, Match, Played
from proxy.replay.score import Prices, Scale, Tally

FORMAT = 1
NOTHING = "nothing"
"""The contender that every other is compared with."""


class Cost(Struct, frozen=True):
    """In units of one plain input token. paid: what the prompts cost. effective: with what fetching again would cost.
    The others: the same in relation to doing nothing; null where that costs nothing."""

    paid: float
    effective: float
    relative: float | None
    effective_relative: float | None


class Kept(Struct, frozen=True):
    """Of what the recorded agent referred back to, how much stood in the prompt: a share between 0 and 1, null where it
    referred to nothing. far: last seen more than 20 messages before; near: the others. wanted, wanted_far: out of
    how many. in_place: with what stood around it, for atoms only."""

    all: float | None
    near: float | None
    far: float | None
    wanted: int
    wanted_far: int
    in_place: float | None = None


class Row(Struct, frozen=True):
    """The sums of one policy. requests: how many. prompt, cached, peak: tokens of all prompts, of those the cached
    ones, of the largest prompt. cost: by price pair ("1.25/0.1"). faults: share of requests that lacked something.
    written: tokens of STATE blocks. asks: questions to helper models, which are not played. refused, failed: plans
    that broke a rule or ended in an error, for which the original was sent; why: reasons, with how often."""

    requests: int
    prompt: int
    cached: int
    peak: int
    cost: dict[str, Cost]
    atoms: Kept
    lines: Kept
    faults: float | None
    written: int
    asks: int
    refused: int
    failed: int
    why: dict[str, int]


class Entry(Struct, frozen=True):
    """A contender. kind: policy, baseline, nothing or bound. sources: the sums by file, or by store."""

    name: str
    kind: str
    policy: str | None
    schedule: str | None
    total: Row
    sources: dict[str, Row]


class Report(Struct, frozen=True):
    """All of it. tokens: the vocabulary that counted. prices: the pairs, write/read, the first one the one that the
    policies decided by. entries: the contenders as they were asked for. bounds: what hindsight would have paid
    (`results`, `messages`)."""

    format: int
    tokens: str
    model: str
    window: int | None
    prices: list[str]
    played_state: bool
    conversations: int
    requests: int
    sources: dict[str, int]
    entries: list[Entry]
    bounds: list[Entry]


class Sums:
    """Adds up what is played."""

    def __init__(self, match: Match) -> None:
        self._match = match
        self._sources: dict[str, int] = {}
        self._tallies: dict[str, dict[str, Tally]] = {}

    def add(self, played: Played) -> None:
        """Another conversation."""
        self._sources[played.source] = self._sources.get(played.source, 0) + 1
        named = {c.label: tally for c, tally in zip(self._match.contenders, played.tallies, strict=True)}
        named |= {_bound_name(name): tally for name, tally in played.bounds.items()}
        for name, tally in named.items():
            by_source = self._tallies.setdefault(name, {})
            for source in (played.source, ""):
                by_source.setdefault(source, Tally()).add(tally)

    @property
    def requests(self) -> int:
        """How many have been played so far."""
        found = self._tallies.get(NOTHING, {}).get("")
        return found.steps if found else 0

    def report(self) -> Report:
        """The report so far."""
        match = self._match
        return Report(
            format=FORMAT,
            tokens=match.model.tokenizer,
            model=match.model.name,
            window=match.model.window,
            prices=[pair(prices) for prices in match.prices],
            played_state=match.play_state,
            conversations=sum(self._sources.values()),
            requests=self.requests,
            sources=dict(self._sources),
            entries=[self._entry(contender) for contender in match.contenders],
            bounds=[
                Entry(name, "bound", None, None, *self._rows(_bound_name(name)))
                for name in BOUNDS
                if _bound_name(name) in self._tallies
            ],
        )

    def _entry(self, contender: Contender) -> Entry:
        policy = contender.policy
        kind = "policy" if policy else "baseline" if contender.baseline else NOTHING
        name, schedule = (policy.name, policy.schedule) if policy else (None, None)
        return Entry(contender.label, kind, name, schedule, *self._rows(contender.label))

    def _rows(self, name: str) -> tuple[Row, dict[str, Row]]:
        nothing = self._tallies.get(NOTHING, {})
        made = {
            source: row(tally, nothing.get(source), self._match.scale)
            for source, tally in self._tallies.get(name, {"": Tally()}).items()
        }
        return made.pop(""), made


def _bound_name(name: str) -> str:
    return f"bound: {name}"


def pair(prices: Prices) -> str:
    """A price pair as a person writes it: 1.25/0.1."""
    return f"{prices[0]:g}/{prices[1]:g}"


def row(tally: Tally, nothing: Tally | None, scale: Scale) -> Row:
    """A tally as a row. nothing: the one of doing nothing with the same requests."""
    fetching = tally.fetching or [0.0] * len(scale.prices)
    return Row(
        requests=tally.steps,
        prompt=tally.prompt,
        cached=tally.cached,
        peak=tally.peak,
        cost=dict(_costs(tally, nothing, scale, fetching)),
        atoms=Kept(
            all=_share(tally.atoms_kept, tally.atoms),
            near=_share(tally.atoms_kept - tally.far_atoms_kept, tally.atoms - tally.far_atoms),
            far=_share(tally.far_atoms_kept, tally.far_atoms),
            wanted=tally.atoms,
            wanted_far=tally.far_atoms,
            in_place=_share(tally.in_place, tally.atoms),
        ),
        lines=Kept(
            all=_share(tally.lines_kept, tally.lines),
            near=_share(tally.lines_kept - tally.far_lines_kept, tally.lines - tally.far_lines),
            far=_share(tally.far_lines_kept, tally.far_lines),
            wanted=tally.lines,
            wanted_far=tally.far_lines,
        ),
        faults=_share(tally.faults, tally.steps),
        written=tally.written,
        asks=tally.asks,
        refused=tally.refused,
        failed=tally.failed,
        why=dict(tally.why.most_common(8)),
    )


def _costs(tally: Tally, nothing: Tally | None, scale: Scale, fetching: Iterable[float]) -> Iterator[tuple[str, Cost]]:
    for prices, again in zip(scale.prices, fetching, strict=True):
        paid = tally.cost(prices, scale.output)
        least = nothing.cost(prices, scale.output) if nothing else 0.0
        yield (
            pair(prices),
            Cost(round(paid, 2), round(paid + again, 2), _share(paid, least), _share(paid + again, least)),
        )


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
