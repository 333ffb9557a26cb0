"""`/api/context`: the functions of REPLOID's context manager over a posted history.

Nothing is stored and no session is changed. These are the functions of the library, for programs in other languages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator

from proxy.chat.tokens import TokenCounter
from proxy.context.models import Model, find_model
from proxy.contrib import reploid
from proxy.errors import NotManaged, Unprocessable
from proxy.web.api.admin_context import AdminContext, AdminContextDep
from proxy.web.api.json_answers import ERROR_RESPONSES

T = TypeVar("T")

router = APIRouter(prefix="/api/context", tags=["context"], responses=ERROR_RESPONSES)

HISTORY: Final = [
    {"role": "system", "content": "You are careful."},
    {"role": "user", "content": "Read the log."},
    {"role": "assistant", "content": "It says: disk full."},
]
EXAMPLES: Final[list[Any]] = [{"item": HISTORY[1], "index": 0, "totalItems": 2}, {"context": HISTORY}]
MAX_MESSAGES: Final = 100_000
"""Messages in one history."""

Messages = Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES, examples=[HISTORY])]
Tokens = Annotated[int, Field(ge=0, le=1 << 53)]


class HistoryBody(BaseModel):
    """A history and the model it is for. Each message has the form of chat completions or of Gemini (`parts`)."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())

    context: Messages
    model_name: Annotated[str, Field(alias="modelName", max_length=256)] = "default"


class PruneBody(HistoryBody):
    """A history to prune. maxTokens: the limit that must be met; without it, 80 % of the model's limit."""

    max_tokens: Annotated[Tokens | None, Field(alias="maxTokens")] = None


class SummarizeBody(HistoryBody):
    """A history to summarize. maxItems: messages that stay, in addition to the system's. text: an existing summary, if
    there is one."""

    max_items: Annotated[int, Field(alias="maxItems", ge=0, le=MAX_MESSAGES)] = 10
    text: Annotated[str | None, Field(max_length=1_000_000)] = None


class EstimateBody(BaseModel):
    """A text, a message, or a history."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())

    content: Annotated[str | dict[str, Any] | list[dict[str, Any]], Field(examples=["How long is this?"])]
    model_name: Annotated[str, Field(alias="modelName", max_length=256)] = "default"


class ScoreBody(BaseModel):
    """Either one message with its place, or a whole history."""

    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        json_schema_extra={"examples": EXAMPLES},
    )

    item: dict[str, Any] | None = None
    index: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    total_items: Annotated[int, Field(alias="totalItems", ge=0, le=1 << 53)] = 1
    context: Annotated[list[dict[str, Any]] | None, Field(max_length=MAX_MESSAGES)] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> ScoreBody:
        if (self.item is None) == (self.context is None):
            raise ValueError("either `item` or `context`")
        return self


class PruneResultStats(BaseModel):
    """Tokens before and after; messages gone and kept."""

    original: int
    final: int
    itemsRemoved: int  # noqa: N815  # the source's names
    itemsKept: int  # noqa: N815  # the name that clients of the source read


class PruneResult(BaseModel):
    """The messages that stay and the removed ones, each as it was posted."""

    pruned: list[dict[str, Any]]
    removed: list[dict[str, Any]]
    stats: PruneResultStats


class SummarizeResultStats(BaseModel):
    """Messages that the summary replaces, and messages kept."""

    summarizedItems: int  # noqa: N815  # the name that clients of the source read
    keptItems: int  # noqa: N815  # the name that clients of the source read


class SummarizeResult(BaseModel):
    """The history with the summary in it; `summary` is null if none was useful."""

    summarized: list[dict[str, Any]]
    summary: dict[str, Any] | None
    stats: SummarizeResultStats


class ContextStats(BaseModel):
    """The use of the model's context."""

    items: int
    tokens: int
    limit: int
    utilizationPercent: float  # noqa: N815  # the name that clients of the source read
    needsPruning: bool  # noqa: N815  # the name that clients of the source read


class TokenEstimate(BaseModel):
    """Tokens, by the model's vocabulary if the proxy counts exactly."""

    tokens: int


class ImportanceScores(BaseModel):
    """Importance, 0 to 100: of the one message, or of each message."""

    score: float | None = None
    scores: list[float] | None = None


@router.post("/prune")
async def prune_history(admin: AdminContextDep, body: PruneBody) -> PruneResult:
    """Drop the least important messages until the rest fits (`pruneContext`)."""
    models, token_counter = _find_model(admin, body.model_name)
    pruned = await _run_in_thread(
        lambda: reploid.prune_context(
            body.context, body.max_tokens, body.model_name, models=models, token_counter=token_counter
        )
    )
    return PruneResult.model_validate(pruned)


@router.post("/auto")
async def prune_automatically(admin: AdminContextDep, body: HistoryBody) -> PruneResult:
    """Prune to 80 % of the model's limit if the history is over it (`autoManageContext`)."""
    models, token_counter = _find_model(admin, body.model_name)
    pruned = await _run_in_thread(
        lambda: reploid.auto_manage_context(body.context, body.model_name, models=models, token_counter=token_counter)
    )
    return PruneResult.model_validate(pruned)


@router.post("/summarize")
async def summarize_history(body: SummarizeBody, _: AdminContextDep) -> SummarizeResult:
    """Replace all messages except the last ones by a summary (`summarizeContext`)."""
    made = await _run_in_thread(lambda: reploid.summarize_context(body.context, body.max_items, text=body.text))
    return SummarizeResult.model_validate(made)


@router.post("/stats")
async def show_context_stats(admin: AdminContextDep, body: HistoryBody) -> ContextStats:
    """Show how full the model's context is with this history (`getContextStats`)."""
    models, token_counter = _find_model(admin, body.model_name)
    stats = await _run_in_thread(
        lambda: reploid.get_context_stats(body.context, body.model_name, models=models, token_counter=token_counter)
    )
    return ContextStats.model_validate(stats)


@router.post("/estimate")
async def estimate_tokens(admin: AdminContextDep, body: EstimateBody) -> TokenEstimate:
    """Count the tokens of a text, a message or a history (`estimateTokens`)."""
    _, token_counter = _find_model(admin, body.model_name)
    return TokenEstimate(
        tokens=await _run_in_thread(lambda: reploid.estimate_tokens(body.content, token_counter=token_counter))
    )


@router.post("/score")
async def score_importance(body: ScoreBody, _: AdminContextDep) -> ImportanceScores:
    """Score how important a message is (`scoreContextImportance`), or each message of a history."""
    item, context = body.item, body.context
    if item is not None:
        one = await _run_in_thread(lambda: reploid.score_context_importance(item, body.index, body.total_items))
        return ImportanceScores(score=one)
    return ImportanceScores(scores=await _run_in_thread(lambda: reploid.score_history(context or [])))


def _find_model(admin: AdminContext, name: str) -> tuple[tuple[Model, ...], TokenCounter]:
    """Return the models whose limits count, and the counter of this model's tokens. REPLOID's own limit of an unknown
    model applies if the proxy knows none."""
    found = find_model(admin.services.models, name)
    known = found.window or found.own.get("importance", {}).get("window")
    return (admin.services.models if known else ()), admin.services.find_token_counter(found)


async def _run_in_thread(work: Callable[[], T]) -> T:
    """Return the result of the function, computed in a thread next to the event loop. Raises Unprocessable if the input
    is not a history."""
    try:
        return await asyncio.to_thread(work)
    except NotManaged as problem:
        raise Unprocessable(f"a message cannot be read: {problem.message}") from None
