"""Table of operator actions on a session, and on the memos of a tenant.

The route, the command and the in-band command of an action are made from its row. `proxy/web/api/operator_actions.py`
makes the routes, `proxy/cli/operator_actions.py` the commands, and `proxy/operator/inband_commands.py` reads and runs
the lines that a user types into the conversation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from proxy.context.analysis.iteration import Urgency
from proxy.context.policy import ScheduleName
from proxy.exchange.services import Services
from proxy.notes.memo_matching import MAX_BYTES
from proxy.operator import (
    edit_memos,
    edit_messages,
    erase,
    give_notes,
    prompt_chart,
    prune,
    rebuild_state,
    session_settings,
    session_stats,
    show,
)
from proxy.operator.session_settings import MAX_SETTING
from proxy.settings.model import Plane

ID_PATTERN: Final = r"^[^\x00]*$"
"""Pattern of a branch, group or message id in a body: no database stores a NUL in a text."""
STATE_EXAMPLE: Final = "Goal: mend the build\nContext: tests fail on 3.13\nResolved: 3.11\nTechnical Anchors: Makefile"
MEMO_EXAMPLE: Final = "The tests need PostgreSQL 14 or newer."

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
ActionFunction = Callable[..., Awaitable[Any]]
"""A function `(services, tenant, session, **arguments)`; without `session` if it is about a tenant."""

Id = Annotated[str, Field(max_length=64, pattern=ID_PATTERN)]


class IdsBody(BaseModel):
    """The selected groups or messages. ids: of groups or messages; a group has the id of the prompt that it begins
    with."""

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[list[Id], Field(min_length=1, max_length=edit_messages.MAX_IDS, examples=[["nbswy3dpeb"]])]
    branch: Annotated[str | None, Field(max_length=64, pattern=ID_PATTERN)] = None


class SettingsBody(BaseModel):
    """The settings of a session; null: as the policy says. window: groups that stay in the prompt, 0 for all of them.
    They hold from the next request on, in this process and every other one."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"policy": "thrifty", "window": 5, "urgency": "gentle"}]}
    )

    policy: Annotated[str | None, Field(max_length=64)] = None
    schedule: ScheduleName | None = None
    window: Annotated[int | None, Field(ge=0, le=MAX_SETTING)] = None
    max_iterations: Annotated[int | None, Field(ge=1, le=MAX_SETTING)] = None
    urgency: Urgency | None = None


class WindowBody(BaseModel):
    """groups: the number of last groups that stay, 0 for all."""

    model_config = ConfigDict(extra="forbid")

    groups: Annotated[int, Field(ge=0, le=MAX_SETTING, examples=[5])]


class BranchBody(BaseModel):
    """branch: the branch to change; without it the one that was last used."""

    model_config = ConfigDict(extra="forbid")

    branch: Annotated[str | None, Field(max_length=64, pattern=ID_PATTERN)] = None


class StateBody(BaseModel):
    """text: the state, as the model would write it under `### STATE`."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=100_000, examples=[STATE_EXAMPLE])]


class ScratchpadBody(BaseModel):
    """text: the whole scratchpad, in Markdown; empty to clear it."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=1_000_000, examples=["- [x] reproduce\n- [ ] mend"])]


class TextBody(BaseModel):
    """text: the text of the note or feedback."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[
        str, Field(min_length=1, max_length=give_notes.MAX_NOTE_CHARS, examples=["Leave the lock file as it is."])
    ]


class MemoBody(BaseModel):
    """The new content of a memo; omitted fields stay."""

    model_config = ConfigDict(extra="forbid")

    content: Annotated[str | None, Field(max_length=MAX_BYTES, examples=[MEMO_EXAMPLE])] = None
    tags: Annotated[
        list[Annotated[str, Field(max_length=200)]] | None, Field(max_length=50, examples=[["tests", "postgresql"]])
    ] = None


class NewMemo(BaseModel):
    """A new memo."""

    model_config = ConfigDict(extra="forbid")

    content: Annotated[str, Field(max_length=MAX_BYTES, examples=[MEMO_EXAMPLE])]
    tags: Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(max_length=50, examples=[["tests", "postgresql"]])
    ] = []
    project: Annotated[str, Field(max_length=100)] = ""


@dataclass(frozen=True, slots=True)
class InbandForm:
    """An in-band command. Its first word is one of `COMMAND_WORDS` in proxy/exchange/inband.py."""

    words: str
    """The words to type. GID stands for a group's id, N for a number, [N] for a number from 1 that may be missing."""
    help: str
    """The line of the help."""


@dataclass(frozen=True, slots=True)
class Action:
    """An operator action. Raises ValueError if it contradicts itself."""

    name: str
    """The name, which the OpenAPI document has as the operation."""
    function: ActionFunction
    """The function that does it. The type that it returns decides how its result is documented and printed."""
    arguments: tuple[str, ...]
    """Names of the function's arguments in addition to services, tenant and session."""
    planes: frozenset[Plane]
    """Keys that open it. admin: by its route and its command. read: the same, for a view. data: also in the
    conversation."""
    method: Method
    path: str
    """The route's path: of a session below `/api/sessions/{session}`, of a tenant below `/api`. `{action}` stands for
    the name of the action."""
    tag: str
    """The section of the OpenAPI document."""
    summary: str
    """The description of the route, and the help of the command."""
    commands: tuple[str, ...]
    """The commands that do it, each by its words; empty for what the dashboard or another program alone needs."""
    scope: Literal["session", "tenant"] = "session"
    body: type[BaseModel] | None = None
    """The model of the route's body. Its fields are arguments."""
    inband: InbandForm | None = None
    done: str | Callable[..., str] = ""
    """The line that the command prints, with arguments and fields of the result in braces; empty: the result."""
    confirm: str = ""
    """The question that the command asks first; empty: none."""
    reads_history: bool = False
    """True if it reads a whole history, and calls no model: it waits for its turn."""

    def __post_init__(self) -> None:
        if problem := self._find_contradiction():
            raise ValueError(f"action {self.name}: {problem}")

    def _find_contradiction(self) -> str:
        known = inspect.signature(self.function).parameters
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
        strangers = {name for name in self.arguments if name not in known and not takes_any}
        in_path = set(re.findall(r"{(\w+)}", self.path)) - {"action"}
        in_body = set(self.body.model_fields) if self.body is not None else set[str]()
        if "admin" not in self.planes or self.planes - set(get_args(Plane)):
            return f"no plane opens it: {sorted(self.planes)}"
        if ("read" in self.planes) != (self.method == "GET"):
            return f"a read key opens views, and {self.method} is for {sorted(self.planes)}"
        if ("data" in self.planes) != (self.inband is not None):
            return "an in-band command is open to the plane data, and nothing else is"
        if strangers:
            return f"its function takes no {', '.join(sorted(strangers))}"
        if not (in_path | in_body) <= set(self.arguments):
            return f"arguments are missing: {', '.join(sorted((in_path | in_body) - set(self.arguments)))}"
        return ""

    @property
    def result(self) -> Any:
        """The type that the function returns."""
        return inspect.signature(self.function, eval_str=True).return_annotation

    @property
    def route_path(self) -> str:
        """The whole path of the route."""
        return ("/api/sessions/{session}" if self.scope == "session" else "/api") + self.path

    def take_turn(self, services: Services, tenant: str) -> AbstractAsyncContextManager[None]:
        """Hold one of the places for reads of many stored messages, where this is one. It is held until the result is
        written: a view of 14 MB of messages takes 150 MB."""
        return services.read_slots.hold(tenant) if self.reads_history else nullcontext()

    @property
    def is_body_optional(self) -> bool:
        """True if the route does without a body: each field of it has a default, and names no change."""
        return self.method == "POST" and self.body is not None and not any(
            field.is_required() for field in self.body.model_fields.values()
        )  # fmt: skip


REQUIRED: Final = inspect.Parameter.empty
"""The default of an argument that has none."""


def make_signature(arguments: Mapping[str, tuple[Any, Any]]) -> inspect.Signature:
    """Return the signature of a route or a command that is made for an action. arguments: types and defaults."""
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in arguments.items()
        ]
    )


READ: Final[frozenset[Plane]] = frozenset({"admin", "read"})
CHANGE: Final[frozenset[Plane]] = frozenset({"admin"})
INBAND: Final[frozenset[Plane]] = frozenset({"data"})

DECISION_PATH: Final = "/decide/{action}"
"""The path of every decision about groups and messages."""


def _make_decision(
    function: edit_messages.DecisionFunction,
    command: str,
    summary: str,
    *,
    inband: InbandForm | None = None,
    confirm: str = "",
) -> Action:
    planes = CHANGE | INBAND if inband is not None else CHANGE
    return Action(
        function.name, function, ("ids", "branch"), planes, "POST", DECISION_PATH, "groups", summary, (command,),
        body=IdsBody, inband=inband, confirm=confirm, reads_history=True,
    )  # fmt: skip


def _describe_window(groups: int, **_: object) -> str:
    return "the whole history is in the prompt" if groups == 0 else f"the last {groups} groups stay"


ACTIONS: Final[tuple[Action, ...]] = (
    Action(
        "show_settings", session_settings.load_settings, (), READ, "GET", "/settings", "operator",
        "Show the settings of the session. `force` and `ask` are the pending actions of its next request.",
        ("sessions settings",),
    ),
    Action(
        "change_settings", session_settings.change_settings, tuple(SettingsBody.model_fields), CHANGE, "PATCH",
        "/settings", "operator", "Set the named settings, and nothing else.", ("sessions settings",),
        body=SettingsBody,
    ),
    Action(
        "replace_settings", session_settings.replace_settings, tuple(SettingsBody.model_fields), CHANGE, "PUT",
        "/settings", "operator", "Set all settings: an omitted one is as the policy says.", (), body=SettingsBody,
    ),
    Action(
        "set_window", session_settings.set_window, ("groups",), CHANGE | INBAND, "POST", "/window", "operator",
        "Keep only the last groups in the prompt.", ("context window",), body=WindowBody,
        inband=InbandForm("/context window N", "keep the last N groups in the prompt; 0: all"), done=_describe_window,
    ),
    Action(
        "show_next_prompt", show.preview_next_prompt, ("branch", "first", "limit", "changed"), READ | INBAND,
        "GET", "/prompt", "groups",
        "Show the prompt that would go out now, with the reason for each message left out or shortened.",
        ("context show", "build"), inband=InbandForm("/context show", "the prompt as it would go out now"),
        reads_history=True,
    ),
    Action(
        "show_past_prompt", show.read_past_prompt, ("exchange", "first", "limit", "changed"), READ, "GET",
        "/exchanges/{exchange}/prompt", "groups",
        "Show the exact prompt of a past exchange, with the reason for each message left out or shortened.",
        ("context show",), reads_history=True,
    ),
    Action(
        "list_groups", show.list_groups, ("last", "status", "branch"), READ | INBAND, "GET", "/groups", "groups",
        "List the groups of a branch, oldest first, with their tokens as received and as they would go out next.",
        ("groups list",), inband=InbandForm("/message list [N]", "the last N groups, with their tokens"),
        reads_history=True,
    ),
    Action(
        "show_group", show.read_group, ("group", "branch"), READ | INBAND, "GET", "/groups/{group}", "groups",
        "Show a group's messages in full, as received and as they would go out next, with the reason for each"
        " difference.",
        ("groups show",), inband=InbandForm("/message show GID", "a group in full"), reads_history=True,
    ),
    Action(
        "prune_prompt", prune.prune_next_prompt, (), CHANGE, "POST", "/prune", "operator",
        "Prune the next prompt as if its budget were smaller than its size. The removed messages stay out.",
        ("context prune",), done="the next request is pruned", reads_history=True,
    ),
    Action(
        "compress_prompt", session_settings.request_compress, (), CHANGE, "POST", "/compress", "operator",
        "Make every edit that the policy proposes with the next request, even an edit that does not pay.",
        ("context compress", "compress"), done="the next request makes every edit that its policy proposes",
    ),
    Action(
        "rebuild", rebuild_state.rebuild, ("branch",), CHANGE | INBAND, "POST", "/rebuild", "operator",
        "Have the state written again from the current prompt. The helper writes it, or the upstream with its own"
        " key; else it comes with the next request.",
        ("context rebuild",), body=BranchBody, inband=InbandForm("/context rebuild", "have the state written again"),
    ),
    _make_decision(
        edit_messages.drop, "context drop", "Take groups or messages out of the prompt; they stay in the store.",
        inband=InbandForm("/context drop GID", "a group leaves the prompt; it stays in the store"),
    ),
    _make_decision(
        edit_messages.restore, "context restore", "Bring groups or messages back in full, whoever took them out.",
        inband=InbandForm("/context restore GID", "what was dropped or left out comes back"),
    ),
    _make_decision(
        edit_messages.remove, "messages remove",
        "Remove groups or messages for good: their content leaves the store as well.",
        inband=InbandForm("/message remove GID", "remove a group for good"), confirm="Remove {ids} for good?",
    ),
    _make_decision(edit_messages.pin, "context pin", "Keep groups or messages as they are: no policy edits them."),
    _make_decision(edit_messages.unpin, "context unpin", "Let policies edit groups or messages again."),
    Action(
        "undo", edit_messages.undo, ("branch",), CHANGE | INBAND, "POST", "/undo", "operator",
        "Remove the last group. The state returns to the one before it, or is written again.", ("undo",),
        body=BranchBody, inband=InbandForm("/undo", "take back the last group"),
    ),
    Action(
        "show_stats", session_stats.compute_stats, ("branch",), READ, "GET", "/stats", "sessions",
        "Show the state of a session: the size of its next prompt, its cost, and its cost without the proxy.",
        ("stats",), reads_history=True,
    ),
    Action(
        "show_chart", prompt_chart.build_chart, ("branch",), READ, "GET", "/prompt_chart", "figures",
        "Show the next prompt of a branch. Each group is a bar of its messages: tokens, changes and their reasons.",
        (), reads_history=True,
    ),
    Action(
        "delete_session", erase.delete_session, (), CHANGE, "DELETE", "", "sessions",
        "Remove all stored data of a session. Memos that were written in it stay, without its name.",
        ("sessions delete",),
    ),
    Action(
        "show_state", give_notes.read_state, ("branch",), READ, "GET", "/state", "notes",
        "Show the state that the next prompt carries.", ("state show",), reads_history=True,
    ),
    Action(
        "set_state", give_notes.set_state, ("text", "branch"), CHANGE, "PUT", "/state", "notes",
        "Replace the model's own state.", ("state set",), body=StateBody,
        done="state set: it stands in the next prompt", reads_history=True,
    ),
    Action(
        "show_scratchpad", give_notes.read_scratchpad, (), READ | INBAND, "GET", "/scratchpad", "notes",
        "Show the session's scratchpad, empty if there is none yet.", ("scratchpad show",),
        inband=InbandForm("/session scratchpad", "the scratchpad"),
    ),
    Action(
        "set_scratchpad", give_notes.set_scratchpad, ("text",), CHANGE, "PUT", "/scratchpad", "notes",
        "Replace the text of the scratchpad.", ("scratchpad set",), body=ScratchpadBody,
        done="scratchpad set: it stands in the next prompt",
    ),
    Action(
        "list_notes", give_notes.list_notes, (), READ, "GET", "/notes", "notes",
        "List the operator's notes in force, oldest first.", ("notes list",),
    ),
    Action(
        "add_note", give_notes.add_note, ("text",), CHANGE, "POST", "/notes", "notes",
        "Add a note at the tail of the next prompt, where it stays.", ("add",), body=TextBody,
        done="note {id} stands in the next prompt",
    ),
    Action(
        "withdraw_note", give_notes.withdraw_note, ("note",), CHANGE, "DELETE", "/notes/{note}", "notes",
        "Withdraw a note from the prompts.", ("notes withdraw",), done="note {note} leaves the prompts",
    ),
    Action(
        "list_feedback", give_notes.list_feedback, ("branch",), READ, "GET", "/feedback", "notes",
        "List the feedback of users on a branch's iterations, oldest first.", ("feedback list",),
    ),
    Action(
        "add_feedback", give_notes.add_feedback, ("text", "branch"), CHANGE, "POST", "/feedback", "notes",
        "Give feedback on the iterations so far: it stands in the next iteration's record.", ("feedback give",),
        body=TextBody, done="it stands in the next iteration's record",
    ),
    Action(
        "show_memo", edit_memos.read_memo, ("memo",), READ, "GET", "/memos/{memo}", "memos", "Show one memo.",
        ("memos show",), scope="tenant",
    ),
    Action(
        "save_memo", edit_memos.save_memo, ("content", "tags", "project"), CHANGE, "POST", "/memos", "memos",
        "Save a memo, as an operator or from elsewhere. A memo that says nearly the same is updated instead.", (),
        scope="tenant", body=NewMemo,
    ),
    Action(
        "edit_memo", edit_memos.edit_memo, ("memo", "content", "tags"), CHANGE, "PUT", "/memos/{memo}", "memos",
        "Edit a memo.", ("memos edit",), scope="tenant", body=MemoBody,
    ),
    Action(
        "delete_memo", edit_memos.delete_memo, ("memo",), CHANGE, "DELETE", "/memos/{memo}", "memos",
        "Remove a memo. It does not come back, whoever writes to it.", ("memos delete",), scope="tenant",
        done="memo {memo} deleted", confirm="Delete the memo {memo}?",
    ),
)  # fmt: skip
"""The actions, in the order of the help."""

ACTIONS_BY_NAME: Final[Mapping[str, Action]] = {one.name: one for one in ACTIONS}
