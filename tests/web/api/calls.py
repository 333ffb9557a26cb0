"""Every call of the admin API with what makes it succeed, what it does not find and what it refuses.

A route without an entry here fails `test_access.py`: nothing is reachable that was not thought about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HISTORY = [
    {"role": "system", "content": "You are careful."},
    {"role": "user", "content": "Read the log."},
    {"role": "assistant", "content": "It says: disk full."},
    {"role": "user", "content": "And now?"},
]


@dataclass(frozen=True)
class Call:
    """path, body: a call that succeeds. absent: the path of what is not there, "" where nothing is named. bad: (path,
    body) that is refused as 400 or 422. reads: open to a read key. names: its path names something of a tenant's.
    makes: it changes what other calls look at, so that it has a session of its own."""

    path: str
    body: Any = None
    absent: str = ""
    bad: tuple[str, Any] | None = None
    reads: bool = False
    names: bool = True
    makes: bool = False
    status: int = 200


S = "/api/sessions/{session}"
NONE = "/api/sessions/nobody"
LIMIT = "?limit=0"

CALLS: dict[tuple[str, str], Call] = {
    ("GET", "/api/openapi.json"): Call("/api/openapi.json", reads=True, names=False),
    ("GET", "/api/sessions"): Call("/api/sessions", bad=("/api/sessions?limit=0", None), reads=True, names=False),
    ("GET", S): Call(S, absent=NONE, bad=("/api/sessions/~!", None), reads=True),
    ("DELETE", S): Call(S, absent=NONE, bad=("/api/sessions/~!", None), makes=True),
    ("GET", S + "/stats"): Call(
        S + "/stats", absent=S + "/stats?branch=nobody", bad=(S + "/stats?branch=" + "a" * 99, None), reads=True
    ),
    ("GET", S + "/messages"): Call(
        S + "/messages", absent=NONE + "/messages", bad=(S + "/messages?cursor=WyJ4Il0", None), reads=True
    ),
    ("GET", S + "/messages/{message}"): Call(
        S + "/messages/{message}",
        absent=S + "/messages/aaaaaaaaaa",
        bad=(S + "/messages/" + "a" * 99, None),
        reads=True,
    ),
    ("GET", S + "/search"): Call(
        S + "/search?q=log", absent=NONE + "/search?q=log", bad=(S + "/search", None), reads=True
    ),
    ("GET", S + "/branches"): Call(
        S + "/branches", absent=NONE + "/branches", bad=(S + "/branches" + LIMIT, None), reads=True
    ),
    ("GET", S + "/branches/{branch}"): Call(
        S + "/branches/{branch}", absent=S + "/branches/nobody", bad=(S + "/branches/" + "a" * 99, None), reads=True
    ),
    ("GET", S + "/branches/{branch}/edits"): Call(
        S + "/branches/{branch}/edits",
        absent=S + "/branches/nobody/edits",
        bad=(S + "/branches/{branch}/edits?limit=x", None),
        reads=True,
    ),
    ("GET", S + "/iterations"): Call(
        S + "/iterations", absent=S + "/iterations?branch=nobody", bad=(S + "/iterations" + LIMIT, None), reads=True
    ),
    ("GET", S + "/summaries"): Call(
        S + "/summaries", absent=S + "/summaries?branch=nobody", bad=(S + "/summaries" + LIMIT, None), reads=True
    ),
    ("GET", S + "/exchanges"): Call(
        S + "/exchanges", absent=NONE + "/exchanges", bad=(S + "/exchanges?cursor=x", None), reads=True
    ),
    ("GET", S + "/exchanges/{exchange}"): Call(
        S + "/exchanges/{exchange}",
        absent=S + "/exchanges/nobody",
        bad=(S + "/exchanges/" + "a" * 99, None),
        reads=True,
    ),
    ("GET", S + "/exchanges/{exchange}/body"): Call(
        S + "/exchanges/{exchange}/body",
        absent=S + "/exchanges/nobody/body",
        bad=(S + "/exchanges/{exchange}/body?which=x", None),
        reads=True,
    ),
    ("POST", S + "/replay"): Call(
        S + "/replay",
        {"policies": [{"policy": "thrifty"}, {"policy": "rolling", "schedule": "when_it_pays"}]},
        absent=NONE + "/replay",
        bad=(S + "/replay", {"policies": [{"policy": "no such"}]}),
    ),
    ("GET", "/api/tools"): Call("/api/tools", reads=True, names=False),
    ("POST", "/api/sessions/{session}/tools/{tool}"): Call(
        S + "/tools/search",
        {"arguments": {"query": "log"}},
        absent=NONE + "/tools/search",
        bad=(S + "/tools/search", {"arguments": 1}),
    ),
    ("GET", "/api/memos"): Call("/api/memos", bad=("/api/memos" + LIMIT, None), reads=True, names=False),
    ("POST", "/api/memos"): Call(
        "/api/memos",
        {"content": "The release is cut on Thursdays, and never by hand.", "tags": ["release"]},
        bad=("/api/memos", {"content": "no"}),
        names=False,
    ),
    ("GET", "/api/memos/export"): Call(
        "/api/memos/export", bad=("/api/memos/export?project=" + "a" * 101, None), names=False
    ),
    ("GET", "/api/memos/{memo}"): Call(
        "/api/memos/{memo}", absent="/api/memos/nobody", bad=("/api/memos/" + "a" * 99, None), reads=True
    ),
    ("PUT", "/api/memos/{memo}"): Call(
        "/api/memos/{memo}",
        {"content": "The tests need PostgreSQL 14 or newer, since 13 has no such function."},
        absent="/api/memos/nobody",
        bad=("/api/memos/{memo}", {"content": "no"}),
    ),
    ("DELETE", "/api/memos/{memo}"): Call(
        "/api/memos/{memo}", absent="/api/memos/nobody", bad=("/api/memos/" + "a" * 99, None), makes=True
    ),
    ("POST", "/api/context/prune"): Call(
        "/api/context/prune",
        {"context": HISTORY, "maxTokens": 20},
        bad=("/api/context/prune", {"context": [{"role": 3}]}),
        names=False,
    ),
    ("POST", "/api/context/auto"): Call(
        "/api/context/auto", {"context": HISTORY}, bad=("/api/context/auto", {"history": []}), names=False
    ),
    ("POST", "/api/context/summarize"): Call(
        "/api/context/summarize",
        {"context": HISTORY, "maxItems": 1},
        bad=("/api/context/summarize", {"context": HISTORY, "maxItems": -1}),
        names=False,
    ),
    ("POST", "/api/context/stats"): Call(
        "/api/context/stats",
        {"context": HISTORY, "modelName": "gpt-5"},
        bad=("/api/context/stats", {"context": "x"}),
        names=False,
    ),
    ("POST", "/api/context/estimate"): Call(
        "/api/context/estimate", {"content": "How long?"}, bad=("/api/context/estimate", {"content": 3}), names=False
    ),
    ("POST", "/api/context/score"): Call(
        "/api/context/score",
        {"item": HISTORY[1], "index": 0, "totalItems": 3},
        bad=("/api/context/score", {}),
        names=False,
    ),
    ("GET", "/api/policies"): Call("/api/policies", bad=("/api/policies?limit=201", None), reads=True, names=False),
    ("GET", "/api/models"): Call("/api/models", bad=("/api/models?limit=-1", None), reads=True, names=False),
    ("GET", "/api/stats"): Call("/api/stats", reads=True, names=False),
    ("GET", "/api/tenants"): Call("/api/tenants", bad=("/api/tenants?cursor=%25", None), reads=True, names=False),
    ("DELETE", "/api/tenants/{tenant}"): Call(
        "/api/tenants/{tenant}", absent="/api/tenants/nobody", bad=("/api/tenants/" + "a" * 200, None), makes=True
    ),
    ("GET", S + "/settings"): Call(S + "/settings", absent=NONE + "/settings", reads=True),
    ("PUT", S + "/settings"): Call(
        S + "/settings",
        {"policy": "rolling", "window": 3},
        absent=NONE + "/settings",
        bad=(S + "/settings", {"policy": "no such"}),
        makes=True,
    ),
    ("PATCH", S + "/settings"): Call(
        S + "/settings",
        {"urgency": "gentle"},
        absent=NONE + "/settings",
        bad=(S + "/settings", {"stranger": 1}),
        makes=True,
    ),
    ("POST", S + "/window"): Call(
        S + "/window", {"groups": 1}, absent=NONE + "/window", bad=(S + "/window", {"groups": -1}), makes=True
    ),
    ("POST", S + "/prune"): Call(S + "/prune", {}, absent=NONE + "/prune", makes=True),
    ("POST", S + "/compress"): Call(S + "/compress", {}, absent=NONE + "/compress", makes=True),
    ("POST", S + "/undo"): Call(S + "/undo", {}, absent=NONE + "/undo", bad=(S + "/undo", {"branch": 3}), makes=True),
    ("POST", S + "/rebuild"): Call(
        S + "/rebuild", {}, absent=NONE + "/rebuild", bad=(S + "/rebuild", {"stranger": 1}), makes=True
    ),
    ("GET", S + "/state"): Call(
        S + "/state", absent=S + "/state?branch=nobody", bad=(S + "/state?branch=" + "a" * 99, None), reads=True
    ),
    ("PUT", S + "/state"): Call(
        S + "/state", {"text": "Goal: this"}, absent=NONE + "/state", bad=(S + "/state", {"text": ""}), makes=True
    ),
    ("GET", S + "/scratchpad"): Call(S + "/scratchpad", absent=NONE + "/scratchpad", reads=True),
    ("PUT", S + "/scratchpad"): Call(
        S + "/scratchpad",
        {"text": "- [ ] mend"},
        absent=NONE + "/scratchpad",
        bad=(S + "/scratchpad", {"text": "x" * 900_000}),
        makes=True,
    ),
    ("GET", S + "/notes"): Call(S + "/notes", absent=NONE + "/notes", reads=True),
    ("POST", S + "/notes"): Call(
        S + "/notes", {"text": "Leave it."}, absent=NONE + "/notes", bad=(S + "/notes", {"text": "  "}), makes=True
    ),
    ("DELETE", S + "/notes/{note}"): Call(
        S + "/notes/{note}", absent=S + "/notes/nobody", bad=(S + "/notes/" + "a" * 99, None), makes=True
    ),
    ("GET", S + "/feedback"): Call(
        S + "/feedback",
        absent=S + "/feedback?branch=nobody",
        bad=(S + "/feedback?branch=" + "a" * 99, None),
        reads=True,
    ),
    ("POST", S + "/feedback"): Call(
        S + "/feedback", {"text": "Good."}, absent=NONE + "/feedback", bad=(S + "/feedback", {"words": 1}), makes=True
    ),
    ("GET", S + "/groups"): Call(
        S + "/groups", absent=S + "/groups?branch=nobody", bad=(S + "/groups?status=x", None), reads=True
    ),
    ("GET", S + "/groups/{group}"): Call(
        S + "/groups/{group}", absent=S + "/groups/nobody", bad=(S + "/groups/" + "a" * 99, None), reads=True
    ),
    ("POST", S + "/groups/{group}/{action}"): Call(
        S + "/groups/{group}/pin",
        {},
        absent=S + "/groups/nobody/drop",
        bad=(S + "/groups/{group}/explode", {}),
        makes=True,
    ),
    ("POST", S + "/messages/{message}/{action}"): Call(
        S + "/messages/{message}/pin",
        {},
        absent=S + "/messages/nobody/drop",
        bad=(S + "/messages/{message}/explode", {}),
        makes=True,
    ),
    ("POST", S + "/decide/{action}"): Call(
        S + "/decide/pin",
        {"ids": ["{group}", "{message}"]},
        absent=NONE + "/decide/drop",
        bad=(S + "/decide/drop", {"ids": []}),
        makes=True,
    ),
    ("GET", S + "/prompt"): Call(
        S + "/prompt", absent=S + "/prompt?branch=nobody", bad=(S + "/prompt?branch=" + "a" * 99, None), reads=True
    ),
    ("GET", S + "/exchanges/{exchange}/prompt"): Call(
        S + "/exchanges/{exchange}/prompt",
        absent=S + "/exchanges/nobody/prompt",
        bad=(S + "/exchanges/" + "a" * 99 + "/prompt", None),
        reads=True,
    ),
    ("GET", S + "/export"): Call(S + "/export", absent=NONE + "/export"),
    ("GET", "/api/export"): Call("/api/export", names=False),
    ("POST", "/api/import"): Call(
        "/api/import",
        {"id": "brought", "messages": HISTORY[:3]},
        bad=("/api/import", {"messages": [{"content": 3}]}),
        names=False,
    ),
    ("GET", "/api/events"): Call(
        "/api/events?follow=false", bad=("/api/events?kind=no:such", None), reads=True, names=False
    ),
    ("GET", "/api/events/kinds"): Call("/api/events/kinds", reads=True, names=False),
    ("GET", "/api/me"): Call("/api/me", reads=True, names=False),
    ("GET", "/api/live"): Call("/api/live", bad=("/api/live?limit=51", None), reads=True, names=False),
    ("GET", "/api/money"): Call("/api/money", bad=("/api/money?step=year", None), reads=True, names=False),
    ("GET", "/api/report"): Call("/api/report", bad=("/api/report?since=soon", None), reads=True, names=False),
    ("GET", "/api/savings"): Call("/api/savings", bad=("/api/savings?since=soon", None), reads=True, names=False),
    ("GET", "/api/search"): Call("/api/search?q=word", bad=("/api/search", None), reads=True, names=False),
    ("GET", S + "/prompt_chart"): Call(
        S + "/prompt_chart",
        absent=S + "/prompt_chart?branch=nobody",
        bad=(S + "/prompt_chart?branch=" + "a" * 99, None),
        reads=True,
    ),
    ("GET", S + "/points"): Call(S + "/points", absent=NONE + "/points", bad=(S + "/points" + LIMIT, None), reads=True),
}
