"""Cost and losses of a policy's prompts, added up request by request.

The definitions are those of the project's scorer for recorded traffic. They are `recall` of atoms and lines, near and
far; `in place`; `faults`, the share of requests that lack something; and the effective cost. The effective cost is the
price of the prompts and of the turns in which the agent would fetch lost content again. Costs are in units of one plain
input token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proxy.chat.message import Message
from proxy.replay import atoms as atom_texts
from proxy.replay.atoms import WireTokenCounter
from proxy.replay.wanted_references import RecordedRequest, Reference, WantedReferences

PricePair = tuple[float, float]
"""(w, r): price of an input token that is written to the cache, and of one that the cache serves."""

FETCH_CALL_TOKENS = 120
"""Tokens of the call by which an agent fetches something again."""
FETCH_LIFETIME = 5
"""Number of requests for which a fetched message stays available."""


@dataclass(slots=True)
class ReplayTotals:
    """The sums of one policy."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    peak: int = 0
    written: int = 0
    """Tokens of STATE blocks."""
    pings: int = 0
    """Pings that kept the cache warm."""
    pinged: int = 0
    """Tokens that they read from the cache."""
    atoms: int = 0
    atoms_kept: int = 0
    far_atoms: int = 0
    far_atoms_kept: int = 0
    in_place: int = 0
    lines: int = 0
    lines_kept: int = 0
    far_lines: int = 0
    far_lines_kept: int = 0
    faults: int = 0
    asks: int = 0
    """Questions that a helper model would have been asked."""
    refused: int = 0
    """Plans that broke a rule. The original was sent."""
    failed: int = 0
    """Plans that ended in an error. The original was sent."""
    fetching: list[float] = field(default_factory=list)
    """The cost of fetching again, by price pair."""
    why: Counter[str] = field(default_factory=Counter)
    """Reasons of refused and failed plans, with their number."""

    def add(self, other: ReplayTotals) -> None:
        """Add another conversation's sums."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak = max(self.peak, other.peak)
        self.fetching = [
            a + b for a, b in zip(self.fetching or [0.0] * len(other.fetching), other.fetching, strict=True)
        ]
        self.why.update(other.why)

    def compute_cost(self, prices: PricePair, output_price: float) -> float:
        """Return the cost of the prompts and pings, and of STATE blocks at `output_price` per token."""
        w, r = prices
        return w * (self.prompt - self.cached) + r * (self.cached + self.pinged) + output_price * self.written


_SUMS = tuple(name for name in ReplayTotals.__dataclass_fields__ if name not in ("peak", "fetching", "why"))


@dataclass(frozen=True, slots=True)
class PriceScale:
    """The prices by which costs are computed."""

    prices: tuple[PricePair, ...]
    output_price: float
    """Price of an output token in units of an input token."""


class PromptScorer:
    """Judges the prompts of one policy in one conversation."""

    def __init__(self, references: WantedReferences, token_counter: WireTokenCounter, scale: PriceScale) -> None:
        self.totals = ReplayTotals(fetching=[0.0] * len(scale.prices))
        self._references = references
        self._own = frozenset(references.messages)
        self._wire_counter = token_counter
        self._scale = scale
        self._fetched: dict[int, int] = {}
        self._step = 0

    def score_request(
        self,
        request: RecordedRequest,
        prompt: Sequence[Message] | None,
        size: int,
        cached: int,
        *,
        written: int = 0,
        is_counted: bool,
    ) -> None:
        """Judge a request. prompt: the messages that were sent, None for the history as it was. is_counted: False if
        the request belongs to another branch. Then only the fetched messages are remembered."""
        totals = self.totals
        missing: set[int] = set()
        kept_atoms: Sequence[Reference] = request.atoms
        kept_lines: Sequence[Reference] = request.lines
        in_place = len(request.atoms)
        if prompt is not None and (request.atoms or request.lines):
            sent = SentPrompt(self._references, prompt, self._own, request.position)
            kept_atoms = [atom for atom in request.atoms if sent.has_atom(atom)]
            kept_lines = [line for line in request.lines if sent.has_line(line)]
            in_place = sum(sent.is_in_place(atom) for atom in kept_atoms)
            missing = _find_lost(request.atoms, kept_atoms) | _find_lost(request.lines, kept_lines)
        missing = {n for n in missing if self._step - self._fetched.get(n, -99) > FETCH_LIFETIME}
        self._fetched.update(dict.fromkeys(missing, self._step))
        self._step += 1
        if not is_counted:
            return
        totals.requests += 1
        totals.prompt += size
        totals.cached += cached
        totals.written += written
        totals.peak = max(totals.peak, size)
        totals.atoms += len(request.atoms)
        totals.atoms_kept += len(kept_atoms)
        totals.far_atoms += _count_far(request.atoms)
        totals.far_atoms_kept += _count_far(kept_atoms)
        totals.in_place += in_place
        totals.lines += len(request.lines)
        totals.lines_kept += len(kept_lines)
        totals.far_lines += _count_far(request.lines)
        totals.far_lines_kept += _count_far(kept_lines)
        if missing:
            totals.faults += 1
            self._add_refetch_cost(sum(self._wire_counter(self._references.messages[n]) for n in missing), size)

    def _add_refetch_cost(self, again: int, size: int) -> None:
        """Add the cost of fetching again. The agent reads its prompt again, writes a call, gets the messages and
        carries them for FETCH_LIFETIME requests."""
        output = self._scale.output_price
        for n, (w, r) in enumerate(self._scale.prices):
            self.totals.fetching[n] += (
                r * size + output * FETCH_CALL_TOKENS + w * (FETCH_CALL_TOKENS + again) + FETCH_LIFETIME * r * again
            )


def _find_lost(wanted: Iterable[Reference], kept: Sequence[Reference]) -> set[int]:
    return {w.holder for w in wanted if w not in kept}


def _count_far(wanted: Iterable[Reference]) -> int:
    return sum(w.far for w in wanted)


class SentPrompt:
    """A prompt as it was sent, in which atoms and lines are searched.

    An unchanged message of the history is not searched, since the positions of atoms and lines in it are known. Only
    edited messages and the proxy's own texts are searched, once for each atom or line.
    """

    def __init__(
        self, references: WantedReferences, prompt: Sequence[Message], recorded: frozenset[Message], position: int
    ) -> None:
        self._references = references
        self._there = frozenset(prompt)
        self._others = [m for m in self._there if m not in recorded]
        self._position = position

    def _is_sent_earlier(self, at: Sequence[int]) -> bool:
        messages, there = self._references.messages, self._there
        return any(n < self._position and messages[n] in there for n in reversed(at))

    def has_atom(self, atom: Reference) -> bool:
        """True if an atom is in the prompt."""
        text = atom.text
        return self._is_sent_earlier(self._references.find_atom(text)) or any(
            m.derive(lambda m: atom_texts.has_atom(text, atom_texts.collect_text(m)), ("atom", text))
            for m in self._others
        )

    def has_line(self, line: Reference) -> bool:
        """True if a line is in the prompt."""
        text = line.text
        return self._is_sent_earlier(self._references.find_line(text)) or any(
            text in atom_texts.collect_lines(m) for m in self._others
        )

    def is_in_place(self, atom: Reference) -> bool:
        """True if the atom is in the prompt with the text that last surrounded it."""
        if self._references.messages[atom.holder] in self._there:
            return True
        window = self._references.read_window(atom)
        return self._is_sent_earlier(self._references.find_window(window)) or any(
            m.derive(lambda m: window in atom_texts.collapse_text(m), ("window", window)) for m in self._others
        )
