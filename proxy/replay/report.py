"""The result of a replay as data, for `--json`, the tables and the picture.

The names of the fields are the names in the file. `format` is raised when a field changes its meaning or is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from proxy.replay.bound import BOUNDS
from proxy.replay.play import Contender, ConversationResult, ReplaySettings
from proxy.replay.score import PricePair, PriceScale, ReplayTotals

FORMAT = 1
NOTHING = "nothing"
"""The contender with which every other is compared."""


class RelativeCost(Struct, frozen=True):
    """A cost in units of one plain input token."""

    paid: float
    """The cost of the prompts."""
    effective: float
    """The cost of the prompts and of fetching lost content again."""
    relative: float | None
    """`paid` relative to doing nothing; null if doing nothing costs nothing."""
    effective_relative: float | None
    """`effective` relative to doing nothing; null if doing nothing costs nothing."""


class KeptShares(Struct, frozen=True):
    """The share of later references that was in the prompt, between 0 and 1; null if there was no reference."""

    all: float | None
    near: float | None
    """The share for content that was last seen at most 20 messages before."""
    far: float | None
    """The share for content that was last seen more than 20 messages before."""
    wanted: int
    """Number of references."""
    wanted_far: int
    """Number of far references."""
    in_place: float | None = None
    """The share of atoms that stood with the text around them, for atoms only."""


class ReportRow(Struct, frozen=True):
    """The sums of one policy."""

    requests: int
    """Number of requests."""
    prompt: int
    """Tokens of all prompts."""
    cached: int
    """Cached tokens of all prompts."""
    peak: int
    """Tokens of the largest prompt."""
    cost: dict[str, RelativeCost]
    """Cost by price pair ("1.25/0.1")."""
    atoms: KeptShares
    lines: KeptShares
    faults: float | None
    """Share of requests that lacked something."""
    written: int
    """Tokens of STATE blocks."""
    asks: int
    """Questions to helper models. They are not played."""
    refused: int
    """Plans that broke a rule. The original was sent."""
    failed: int
    """Plans that ended in an error. The original was sent."""
    why: dict[str, int]
    """Reasons of refused and failed plans, with their number."""
    pings: int = 0
    """Pings that kept the cache warm. Their price is in the costs."""


class ReportEntry(Struct, frozen=True):
    """The result of a contender or a bound."""

    name: str
    kind: str
    """policy, baseline, nothing or bound."""
    policy: str | None
    schedule: str | None
    total: ReportRow
    sources: dict[str, ReportRow]
    """The sums by file, or by store."""

    @property
    def kept_share(self) -> float | None:
        """The share of lines kept; of atoms if no line was wanted; None if nothing was wanted."""
        return self.total.atoms.all if self.total.lines.all is None else self.total.lines.all


class ReplayReport(Struct, frozen=True):
    """A whole report."""

    format: int
    tokens: str
    """The vocabulary that counted tokens."""
    model: str
    window: int | None
    prices: list[str]
    """The price pairs, write/read. Policies decided by the first one."""
    played_state: bool
    conversations: int
    requests: int
    sources: dict[str, int]
    entries: list[ReportEntry]
    """The contenders in the order of the command line."""
    bounds: list[ReportEntry]
    """The bounds from hindsight (`results`, `messages`)."""
    input: float | None = None
    """Dollars per million input tokens of the model; null if no price is known."""
    cache_s: float | None = None
    """Seconds without use after which the cache counts as cold; null where the model has no cache."""
    keep_alive_pings: int = 0
    """The most pings after each answer."""

    def describe_size(self) -> str:
        """Return the number of conversations and requests: 1 conversation, 1,204 requests."""
        counts = {"conversation": self.conversations, "request": self.requests}
        return ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())

    def convert_to_dollars(self, cost: float) -> float | None:
        """Return a cost in units of one input token as dollars; None if no price is known."""
        return None if self.input is None else cost * self.input / 1e6


class ReportBuilder:
    """Adds up the results of conversations."""

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings
        self._sources: dict[str, int] = {}
        self._totals: dict[str, dict[str, ReplayTotals]] = {}

    def add_result(self, result: ConversationResult) -> None:
        """Add another conversation."""
        self._sources[result.source] = self._sources.get(result.source, 0) + 1
        named = {c.label: totals for c, totals in zip(self._settings.contenders, result.totals, strict=True)}
        named |= {_bound_name(name): totals for name, totals in result.bounds.items()}
        for name, totals in named.items():
            by_source = self._totals.setdefault(name, {})
            for source in (result.source, ""):
                by_source.setdefault(source, ReplayTotals()).add(totals)

    @property
    def request_count(self) -> int:
        """Number of requests played so far."""
        found = self._totals.get(NOTHING, {}).get("")
        return found.requests if found else 0

    def build_report(self) -> ReplayReport:
        """Return the report so far."""
        settings = self._settings
        return ReplayReport(
            format=FORMAT,
            tokens=settings.model.tokenizer,
            model=settings.model.name,
            window=settings.model.window,
            prices=[format_price_pair(prices) for prices in settings.prices],
            played_state=settings.play_state,
            conversations=sum(self._sources.values()),
            requests=self.request_count,
            sources=dict(self._sources),
            input=settings.model.input,
            cache_s=None if settings.model.cache == "none" else settings.model.ttl_s,
            keep_alive_pings=settings.keep_alive_pings,
            entries=[self._make_entry(contender) for contender in settings.contenders],
            bounds=[
                ReportEntry(name, "bound", None, None, *self._build_rows(_bound_name(name)))
                for name in BOUNDS
                if _bound_name(name) in self._totals
            ],
        )

    def _make_entry(self, contender: Contender) -> ReportEntry:
        policy = contender.policy
        kind = "policy" if policy else "baseline" if contender.baseline else NOTHING
        name, schedule = (policy.name, policy.schedule) if policy else (None, None)
        return ReportEntry(contender.label, kind, name, schedule, *self._build_rows(contender.label))

    def _build_rows(self, name: str) -> tuple[ReportRow, dict[str, ReportRow]]:
        nothing = self._totals.get(NOTHING, {})
        rows = {
            source: build_row(totals, nothing.get(source), self._settings.price_scale)
            for source, totals in self._totals.get(name, {"": ReplayTotals()}).items()
        }
        return rows.pop(""), rows


def _bound_name(name: str) -> str:
    return f"bound: {name}"


def format_price_pair(prices: PricePair) -> str:
    """Return a price pair as a person writes it: 1.25/0.1."""
    return f"{prices[0]:g}/{prices[1]:g}"


def build_row(totals: ReplayTotals, nothing: ReplayTotals | None, scale: PriceScale) -> ReportRow:
    """Return totals as a row. nothing: those of doing nothing with the same requests."""
    fetching = totals.fetching or [0.0] * len(scale.prices)
    return ReportRow(
        requests=totals.requests,
        prompt=totals.prompt,
        cached=totals.cached,
        peak=totals.peak,
        cost=dict(_compute_costs(totals, nothing, scale, fetching)),
        atoms=replace(
            _compute_shares(totals.atoms_kept, totals.atoms, totals.far_atoms_kept, totals.far_atoms),
            in_place=_compute_share(totals.in_place, totals.atoms),
        ),
        lines=_compute_shares(totals.lines_kept, totals.lines, totals.far_lines_kept, totals.far_lines),
        faults=_compute_share(totals.faults, totals.requests),
        written=totals.written,
        asks=totals.asks,
        refused=totals.refused,
        failed=totals.failed,
        why=dict(totals.why.most_common(8)),
        pings=totals.pings,
    )


def _compute_shares(kept: int, wanted: int, far_kept: int, wanted_far: int) -> KeptShares:
    return KeptShares(
        all=_compute_share(kept, wanted),
        near=_compute_share(kept - far_kept, wanted - wanted_far),
        far=_compute_share(far_kept, wanted_far),
        wanted=wanted,
        wanted_far=wanted_far,
    )


def _compute_costs(
    totals: ReplayTotals, nothing: ReplayTotals | None, scale: PriceScale, fetching: Iterable[float]
) -> Iterator[tuple[str, RelativeCost]]:
    for prices, again in zip(scale.prices, fetching, strict=True):
        paid = totals.compute_cost(prices, scale.output_price)
        least = nothing.compute_cost(prices, scale.output_price) if nothing else 0.0
        yield (
            format_price_pair(prices),
            RelativeCost(
                round(paid, 2), round(paid + again, 2), _compute_share(paid, least), _compute_share(paid + again, least)
            ),
        )


def _compute_share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
