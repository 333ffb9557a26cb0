from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from proxy.dialects.completions.request import read_request
from proxy.sessions.locate import MAX_NAME_BYTES, derive_tenant, find_session_name, make_id
from proxy.settings.load import Settings
from tests.proxy_server import CHAT, Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls, send_completion

SYSTEM = {"role": "system", "content": "Be."}
IDENTITY = Settings().identity
READ = make_calls(("call_7dhe2", "read"), path="a.py")


def read_session_name(headers: dict[str, str], path: str | None = None, **body: Any) -> str | None:
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **body}).encode()
    return find_session_name(path, headers, read_request(raw), IDENTITY)


def test_the_path_comes_before_our_header_that_before_the_agents_and_those_before_the_body() -> None:
    headers = {"x-context-session": "b", "thread-id": "c", "x-session-id": "d", "x-any-session-id": "e"}
    body: dict[str, Any] = {"session_id": "f", "metadata": {"conversation_id": "g"}}
    order = ["x-context-session", "thread-id", "x-session-id", "x-any-session-id"]
    assert read_session_name(headers, "a", **body) == "a"
    for n, header in enumerate(order):
        assert read_session_name({k: v for k, v in headers.items() if k in order[n:]}, None, **body) == headers[header]
    assert read_session_name({}, None, **body) == "f"
    assert read_session_name({}, None, metadata={"conversation_id": "g"}) == "g"


def test_a_sub_agent_of_codex_belongs_to_the_session_of_the_thread_that_spawned_it() -> None:
    first = {"thread-id": "t1", "session-id": "t1"}
    spawned = {"thread-id": "t2", "session-id": "t1", "x-codex-parent-thread-id": "t1"}
    spawned_by_it = {"thread-id": "t3", "session-id": "t1", "x-codex-parent-thread-id": "t2"}
    assert [read_session_name(one) for one in (first, spawned, spawned_by_it)] == ["t1"] * 3
    assert read_session_name({"thread-id": "t2", "session-id": "t1"}) == "t2", "a thread that nobody spawned"
    assert read_session_name({"thread-id": "t2", "x-codex-parent-thread-id": "t1"}) == "t2", "an older Codex"


@pytest.mark.parametrize("header", [*IDENTITY.headers, "x-somebodys-session-id", "x-my-agent-session-id"])
def test_every_header_that_agents_send_names_a_session(header: str) -> None:
    assert read_session_name({header.lower(): " s1 "}) == "s1"


@pytest.mark.parametrize("field", IDENTITY.body_fields)
def test_every_body_field_made_for_it_names_a_session(field: str) -> None:
    top, _, inner = field.partition(".")
    values: list[Any] = [None, 7, "", [], {"a": 1}]
    bodies: list[dict[str, Any]] = [{top: {inner: odd} if inner else odd} for odd in values]
    for body in bodies + ([{top: "s1"}] if inner else []):
        assert read_session_name({}, **body) is None
    right: dict[str, Any] = {top: {inner: "s1"} if inner else "s1"}
    assert read_session_name({}, **right) == "s1"


@pytest.mark.parametrize(
    "header",
    ["x-request-id", "x-client-request-id", "traceparent", "x-portkey-trace-id", "x-parent-session-id", "session-id",
     "x-parent-x-session-id", "idempotency-key", "user-agent", "x-stainless-session"],
)  # fmt: skip
def test_ids_of_requests_parents_and_traces_name_no_session(header: str) -> None:
    assert read_session_name({header: "s1"}) is None


def test_hints_are_never_an_identity() -> None:
    assert (
        read_session_name({}, prompt_cache_key="k", user="u", safety_identifier="s", metadata={"user_id": "u"}) is None
    )


@pytest.mark.parametrize("value", ["", "  ", "null", "None", "undefined", "\t"])
def test_a_value_that_says_nothing_leaves_the_word_to_the_next(value: str) -> None:
    assert read_session_name({"x-context-session": value, "x-session-id": "s1"}) == "s1"
    assert read_session_name({"x-session-id": value}, value, session_id="s2") == "s2"


@pytest.mark.parametrize("value", ["a" * (MAX_NAME_BYTES + 1), "a\r\nx-evil: 1", "a\x00b", "ä" * 200, "\u202eabc"])
def test_a_value_that_cannot_be_shown_is_hashed(value: str) -> None:
    name = read_session_name({}, value)
    assert name is not None
    assert name.startswith("h-")
    assert name == read_session_name({}, value)
    assert name != read_session_name({}, value + "1")


def test_names_that_look_alike_are_one_only_where_unicode_says_so() -> None:
    assert read_session_name({}, "cafe\u0301") == read_session_name({}, "caf\u00e9")
    assert read_session_name({}, "а") != read_session_name({}, "a")  # the first is Cyrillic


def test_a_tenant_is_a_hash_of_its_credential() -> None:
    one = derive_tenant({"authorization": "Bearer sk-secret"}, "")
    assert "secret" not in one
    assert one != derive_tenant({"authorization": "Bearer sk-other"}, "")
    assert one != derive_tenant({"authorization": "Bearer sk-secret"}, "salt")
    assert one != derive_tenant({}, "")
    assert derive_tenant({"api-key": "k"}, "") == derive_tenant({"x-api-key": "k"}, "")
    assert derive_tenant({"authorization": "k", "x-context-session": "a", "x-user": "b"}, "") == derive_tenant(
        {"authorization": "k"}, ""
    )


def test_ids_are_new_each_time() -> None:
    assert len({make_id() for _ in range(1000)}) == 1000


def test_ids_sort_by_the_time_at_which_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for second in (1_700_000_000, 1_700_000_001, 1_800_000_000, 1_900_000_000):
        monkeypatch.setattr("time.time_ns", lambda second=second: second * 10**9)
        made.append(make_id())
    assert made == sorted(made)
    assert all(re.fullmatch("[a-z2-7]{16}", one) for one in made)


async def branches(proxy: RunningProxy) -> list[tuple[str, str]]:
    """(session, kind) of each branch, oldest first."""
    return [(s, k) for s, k in await proxy.rows("SELECT session, kind FROM branches ORDER BY created_at, rowid")]


async def test_without_a_name_a_conversation_is_recognised_by_an_answer_of_the_proxy() -> None:
    async with run_upstream(ScriptedModel("One.", "Two.", "Three.")) as upstream, run_proxy(upstream.port) as proxy:
        for stream in (False, True):
            agent = Agent(proxy, stream=stream, messages=[SYSTEM])
            found = [await agent.say(text) for text in ("Hello", "Go on", "And?")]
            assert len({f.session for f in found}) == 1
        assert [kind for _, kind in await branches(proxy)] == ["main", "main"]


async def test_two_first_requests_that_are_alike_are_two_sessions() -> None:
    async with (
        run_upstream(ScriptedModel("One.", "Two.", "Three.", "Four.")) as upstream,
        run_proxy(upstream.port) as proxy,
    ):
        first, second = Agent(proxy), Agent(proxy)
        one, two = (await first.say("Hello")).session, (await second.say("Hello")).session
        assert one != two
        assert (await second.say("Go on")).session == two
        assert (await first.say("Go on")).session == one


async def test_a_history_without_a_known_answer_belongs_to_no_session() -> None:
    foreign = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "From elsewhere."}]
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        one = await Agent(proxy, messages=list(foreign)).say("Go on")
        two = await Agent(proxy, messages=list(foreign)).say("Go on")
        assert one.session != two.session


async def test_the_same_name_under_two_credentials_is_two_sessions() -> None:
    async with run_upstream(ScriptedModel("One.", "Two.", "Three.")) as upstream, run_proxy(upstream.port) as proxy:
        line = (b"x-context-session: shared",)
        mine, theirs = Agent(proxy, line, key="sk-a"), Agent(proxy, line, key="sk-b")
        await mine.say("Hello")
        await theirs.say("Hello")
        await mine.say("Go on")
        assert await branches(proxy) == [("shared", "main"), ("shared", "main")]
        assert len(await proxy.rows("SELECT DISTINCT tenant FROM messages")) == 2


async def test_a_history_under_another_credential_belongs_to_nobody() -> None:
    async with run_upstream(ScriptedModel("One.", "Two.", "Three.")) as upstream, run_proxy(upstream.port) as proxy:
        mine = Agent(proxy, key="sk-a")
        session = (await mine.say("Hello")).session
        theirs = Agent(proxy, key="sk-b", messages=list(mine.messages))
        assert (await theirs.say("Go on")).session != session


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("titled", [False, True])
async def test_a_copy_that_an_agent_names_anew_is_a_branch_of_the_session_it_began_in(
    tmp_path: Path, restarted: bool, titled: bool
) -> None:
    db, model = f"{tmp_path}/a.sqlite3", ScriptedModel(READ, *(f"Answer {n}." for n in range(20)))
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, db=db) as proxy:
            first = Agent(proxy, (b"x-session-id: a",), messages=[SYSTEM])
            await first.say("Hello")
            first.brings("It is there.")
            await first.say()
            if not restarted:
                await check_copies(first, titled=titled)
        if restarted:
            async with run_proxy(upstream.port, db=db) as first.proxy:
                await check_copies(first, titled=titled)


async def check_copies(first: Agent, *, titled: bool) -> None:
    """See that a copy and a copy of it go on in session a. titled: a title is asked for under the new name."""
    if titled:
        await Agent(first.proxy, (b"x-session-id: b",)).say("Name this: Hello")
    copy = Agent(first.proxy, (b"x-session-id: b",), messages=list(first.messages))
    assert [(await copy.say(text)).session for text in ("Another way", "And?")] == ["a", "a"]
    further = Agent(first.proxy, (b"x-session-id: c",), messages=list(copy.messages))
    assert (await further.say("A third way")).session == "a"
    assert (await first.say("And?")).session == "a"
    assert [session for session, _ in await branches(first.proxy) if session != "b"] == ["a"] * 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_copies_under_any_number_of_names_leave_nothing_in_memory(tmp_path: Path, restarted: bool) -> None:
    db, model = f"{tmp_path}/a.sqlite3", ScriptedModel(READ, *(f"Answer {n}." for n in range(20)))
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, db=db) as proxy:
            first = Agent(proxy, (b"x-session-id: a",))
            await first.say("Hello")
            first.brings("It is there.")
            await first.say()
            if not restarted:
                await copy_often(first)
        if restarted:
            async with run_proxy(upstream.port, db=db) as first.proxy:
                await copy_often(first)


async def copy_often(first: Agent) -> None:
    """Continue copies of a conversation under other names: only the first session is in memory."""
    sessions = first.proxy.app.services.live_sessions
    names = [f"copy {n}" for n in range(10)]
    for name in names:
        copy = Agent(first.proxy, (b"x-session-id: " + name.encode(),), messages=list(first.messages))
        assert (await copy.say(f"Not as {name}")).session == "a"
    tenant = (await first.proxy.rows("SELECT tenant FROM sessions"))[0][0]
    assert [name for name in ("a", *names) if sessions.find_session(tenant, name) is not None] == ["a"]


@pytest.mark.parametrize(("name", "path"), [(b"x-context-session: b", CHAT), (b"x-any: 1", "/s/b/v1/chat/completions")])
async def test_a_name_that_was_chosen_for_the_proxy_is_never_overruled(name: bytes, path: str) -> None:
    async with run_upstream(ScriptedModel(READ, "Two.", "Three.")) as upstream, run_proxy(upstream.port) as proxy:
        first = Agent(proxy, (b"x-session-id: a",))
        await first.say("Hello")
        first.brings("It is there.")
        assert (await Agent(proxy, (name,), path=path, messages=list(first.messages)).say("Go on")).session == "b"


async def test_a_named_conversation_that_only_begins_like_another_has_its_own_session() -> None:
    foreign = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "From elsewhere."}]
    model = ScriptedModel(*(f"Answer {n}." for n in range(20)))
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agents = [Agent(proxy, (b"x-session-id: " + name,)) for name in (b"a", b"b")]
        for text in ("Hello", "Go on"):
            assert [(await agent.say(text)).session for agent in agents] == ["a", "b"], "the same question"
        agents = [Agent(proxy, (b"x-session-id: " + name,), messages=list(foreign)) for name in (b"c", b"d")]
        for text in ("Hello", "Go on"):
            assert [(await agent.say(text)).session for agent in agents] == ["c", "d"], "no answer of the proxy's"
        late = Agent(proxy, (b"x-session-id: f",), messages=list(agents[0].messages))
        assert (await late.say("Go on")).session == "f", "no answer with calls"
        agents[0].key, agents[0].lines = "sk-other", (b"x-session-id: e",)
        assert (await agents[0].say("Go on")).session == "e", "another credential"


@pytest.mark.parametrize("line", [(), (b"x-session-id: s",)])
async def test_a_retry_stays_on_its_branch_and_the_same_request_again_is_a_twin(line: tuple[bytes, ...]) -> None:
    async with (
        run_upstream(ScriptedModel("One.", "Two.", "Three.", "Four.")) as upstream,
        run_proxy(upstream.port) as proxy,
    ):
        agent = Agent(proxy, line)
        await agent.say("Hello")
        agent.messages.append({"role": "user", "content": "Go on"})
        await agent.send()
        await agent.send(b"x-stainless-retry-count: 1")
        assert [kind for _, kind in await branches(proxy)] == ["main"]
        await agent.send(b"x-stainless-retry-count: 0")
        assert [kind for _, kind in await branches(proxy)] == ["main", "twin"]


async def test_after_a_failed_attempt_the_same_again_is_a_retry() -> None:
    async with run_upstream(ScriptedModel("One.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy)
        await agent.say("Hello")
        agent.messages.append({"role": "user", "content": "Go on"})

        async def busy(_: Any, there: Any) -> None:
            await there.send(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")

        upstream.script = busy
        assert (await agent.send()).status == 503
        upstream.script = ScriptedModel("Two.")
        assert (await agent.send()).status == 200
        assert [kind for _, kind in await branches(proxy)] == ["main"]


async def test_while_the_retry_of_a_failed_attempt_is_answered_the_same_again_is_a_twin() -> None:
    """The failure was the last attempt's: what comes beside the retry is no second retry of it."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def busy(_: Any, there: Any) -> None:
        await there.send(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")

    async def slow(_: Any, there: Any) -> None:
        begun.set()
        await go.wait()
        await send_completion(there, {"role": "assistant", "content": "Two."}, None)

    model = ScriptedModel("One.", busy, slow, "Three.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy)
        await agent.say("Hello")
        agent.messages.append({"role": "user", "content": "Go on"})
        assert (await agent.send()).status == 503
        beside = Agent(proxy, messages=list(agent.messages))
        retry = asyncio.create_task(agent.send())
        await asyncio.wait_for(begun.wait(), 10)
        assert (await beside.send()).message["content"] == "Three."
        go.set()
        assert (await retry).message["content"] == "Two."
        assert [kind for _, kind in await branches(proxy)] == ["main", "twin"]


async def test_an_answer_asked_for_again_leaves_both_answers_to_continue_from() -> None:
    async with (
        run_upstream(ScriptedModel("One.", "Two.", "Three.", "Four.")) as upstream,
        run_proxy(upstream.port) as proxy,
    ):
        agent = Agent(proxy, (b"x-session-id: s",))
        first = (await agent.say("Hello")).message
        second = (await agent.send()).message if agent.messages.pop() else None
        for answer in (first, second):
            branch = Agent(proxy, agent.lines, messages=[*agent.messages, answer])  # type: ignore[list-item]
            await branch.say("Go on")
        assert [kind for _, kind in await branches(proxy)] == ["main", "twin"]


@pytest.mark.parametrize("line", [(), (b"x-session-id: s",)])
async def test_an_edit_of_an_earlier_message_forks_and_the_old_branch_stays(line: tuple[bytes, ...]) -> None:
    async with (
        run_upstream(ScriptedModel("One.", "Two.", "Three.", "Four.", "Five.")) as upstream,
        run_proxy(upstream.port) as proxy,
    ):
        agent = Agent(proxy, line)
        session = (await agent.say("Hello")).session
        await agent.say("Go on")
        branch = Agent(proxy, line, messages=agent.messages[:2])
        assert (await branch.say("Go back")).session == session
        assert [kind for _, kind in await branches(proxy)] == ["main", "fork"]
        await branch.say("And now?")
        await agent.say("And here?")
        assert [kind for _, kind in await branches(proxy)] == ["main", "fork"], "both go on where they were"
        rows = await proxy.rows("SELECT count(*), count(DISTINCT key) FROM messages")
        assert rows == [(10, 10)], "the two messages before the fork are stored once"


async def test_a_title_made_under_the_same_name_is_a_side_call() -> None:
    line = (b"x-session-affinity: ses_1", b"x-session-id: ses_1")
    title = [{"role": "system", "content": "You make titles."}, {"role": "user", "content": "Make a title for: Hello"}]
    async with run_upstream(ScriptedModel("One.", "A title", "Two.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, line, messages=[SYSTEM])
        await agent.say("Hello")
        await Agent(proxy, line, messages=title).send()
        await agent.say("Go on")
        assert await branches(proxy) == [("ses_1", "main"), ("ses_1", "side")]


async def test_a_system_prompt_that_changes_does_not_part_a_conversation() -> None:
    async with run_upstream(ScriptedModel("One.", "Two.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, messages=[{"role": "system", "content": "It is Monday."}])
        session = (await agent.say("Hello")).session
        agent.messages[0] = {"role": "system", "content": "It is Tuesday."}
        assert (await agent.say("Go on")).session == session
        assert [kind for _, kind in await branches(proxy)] == ["main"]


REWRITES: dict[str, Any] = {
    "parts": lambda m: m | {"content": [{"type": "text", "text": m["content"]}]},
    "arguments": lambda m: m | {"tool_calls": [recalled(c) for c in m["tool_calls"]]},
    "content left out": lambda m: {k: v for k, v in m.items() if k != "content"},
    "content empty": lambda m: m | {"content": ""},
    "more fields": lambda m: m | {"annotations": [], "provider_specific_fields": {"a": 1}, "refusal": None},
    "reasoning left out": lambda m: {k: v for k, v in m.items() if not k.startswith("reasoning")},
    "another text": lambda m: m | {"content": "What the client made of it."},
}


def recalled(call: dict[str, Any]) -> dict[str, Any]:
    """The call with its arguments written in another way."""
    found = json.loads(call["function"]["arguments"])
    function = {"name": call["function"]["name"], "arguments": json.dumps(dict(reversed(found.items())), indent=1)}
    return {"type": "function", "function": function, "id": call["id"]}


@pytest.mark.parametrize("line", [(), (b"x-session-id: s",)])
@pytest.mark.parametrize("how", REWRITES)
async def test_an_answer_that_the_client_writes_in_its_own_way_is_still_ours(how: str, line: tuple[bytes, ...]) -> None:
    text = "I will look." if how == "parts" else None
    step = make_calls(("call_abcdef01", "look"), text=text, path="a.txt", depth=2) | {"reasoning_content": "Hm."}
    async with run_upstream(ScriptedModel(step, "Done.", "Fine.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, line)
        session = (await agent.say("Look")).session
        agent.brings("It is there.")
        agent.messages[1] = REWRITES[how](agent.messages[1])
        assert (await agent.say()).session == session
        assert (await agent.say("Thanks")).session == session
        assert [kind for _, kind in await branches(proxy)] == ["main"]


async def test_an_agent_that_writes_every_answer_in_its_own_way_has_one_session() -> None:
    """The AI SDK returns arguments as its schema reads them: with defaults, and without members that it does not
    know. From the third request on, each request began a session."""
    steps = [make_calls((f"call_12345{n}", "read"), path=f"file{n}.py", why="I look.") for n in range(6)]
    model = ScriptedModel(*steps, "Done.")
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": "Find the fault."}]
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        for n in range(7):
            found = await proxy.post({"model": "m", "messages": messages})
            assert found.status == 200
            own = make_calls((f"call_12345{n}", "read"), path=f"file{n}.py", limit=2000)
            messages += [own, {"role": "tool", "tool_call_id": f"call_12345{n}", "content": "Nothing."}]
        assert await proxy.rows("SELECT count(*) FROM sessions") == [(1,)]
        assert await proxy.rows("SELECT count(*) FROM branches") == [(1,)]


async def test_conversations_that_begin_alike_have_a_session_each() -> None:
    """A greeting and its answer are the same for many. The second request of one forked off the session of another."""
    async with run_upstream(ScriptedModel("Hello!")) as upstream, run_proxy(upstream.port) as proxy:
        agents = [Agent(proxy) for _ in range(3)]
        for agent in agents:
            await agent.say("Hello")
        found: list[str] = []
        for _ in range(2):
            found = [(await agent.say(f"I am {n}")).session for n, agent in enumerate(agents)]
        assert len(set(found)) == 3
        assert [kind for _, kind in await branches(proxy)] == ["main"] * 3


@pytest.mark.parametrize("counter", ["functions.list_dir:0", "call_0_list_dir", "list_dir-000001", "ToolCall_12"])
async def test_an_id_that_only_counts_anchors_no_session(counter: str) -> None:
    """Two people may ask the same under one credential, and some models count their calls from 0."""
    model = ScriptedModel(make_calls((counter, "list_dir"), path="."), make_calls((counter, "list_dir"), path="src"))
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        one, other = Agent(proxy), Agent(proxy)
        first = (await one.say("Look")).session
        await other.say("Look")
        other.brings("Nothing.")
        other.messages[1] = make_calls((counter, "list_dir"), path="src", all=False)
        assert (await other.say()).session != first


def flatten_calls(answer: dict[str, Any]) -> dict[str, Any]:
    """The calls written into the text, as the agents of smolagents send them."""
    called = f"Calling tools:\n{answer.get('tool_calls')}"
    return {"role": "assistant", "content": [{"type": "text", "text": f"{answer['content'] or ''}\n{called}"}]}


def take_out_thinking(answer: dict[str, Any]) -> dict[str, Any]:
    """The text without the reasoning in front of it, which some models write into their text."""
    return answer | {"content": answer["content"].rpartition("</think>")[2].strip()}


def give_own_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """The ids of the calls as Droid replaces them where they only count."""
    calls = [one | {"id": f"call_tc-{hash(one['id']) % 10**12:012}"} for one in answer.get("tool_calls", ())]
    return answer | {"tool_calls": calls} if calls else answer


def add_argument(answer: dict[str, Any]) -> dict[str, Any]:
    """The calls with the name of the tool among their arguments, as Langroid writes it there."""
    calls = [
        one | {"function": one["function"] | {"arguments": one["function"]["arguments"][:-1] + ', "request": "read"}'}}
        for one in answer.get("tool_calls", ())
    ]
    return answer | {"tool_calls": calls} if calls else answer


def cut_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """The ids of the calls as some agents send them to Mistral, whose ids have nine letters and digits."""
    calls = [one | {"id": one["id"].replace("_", "")[:9]} for one in answer.get("tool_calls", ())]
    return answer | {"tool_calls": calls} if calls else answer


CODE = "Thought: I look at file {n}.\n<code>\nprint(open('file{n}.py').read())\n</code>"
REWORDINGS: dict[str, Any] = {
    "calls as text": (lambda n: make_calls((f"call_12345{n}", "read"), path=f"file{n}.py"), flatten_calls),
    "text with an addition": (lambda n: {"role": "assistant", "content": CODE.format(n=n)}, flatten_calls),
    "text without thinking": (
        lambda n: {"role": "assistant", "content": f"<think>Hm, {n}.</think>\n\nI look at file {n} now."},
        take_out_thinking,
    ),
    "own ids for counters": (lambda n: make_calls((f"call_{n}", "read"), path=f"file{n}.py"), give_own_ids),
    "counters without the text": (
        lambda n: make_calls((f"functions.read:{n}", "read"), text=f"I look at file {n} now.", path=f"file{n}.py"),
        lambda answer: {k: v for k, v in answer.items() if k != "content" or not answer.get("tool_calls")},
    ),
    "counters with more arguments": (
        lambda n: make_calls((f"functions.read:{n}", "read"), text=f"I look at file {n} now.", path=f"file{n}.py"),
        add_argument,
    ),
    "cut ids": (lambda n: make_calls((f"call_Zq{n}xW7vLb", "read"), path=f"file{n}.py"), cut_ids),
}


@pytest.mark.parametrize("how", REWORDINGS)
@pytest.mark.parametrize("lives", [(7,), (2, 1, 4)], ids=["one process", "restarts"])
async def test_an_agent_that_sends_its_answers_as_another_text_has_one_session(
    tmp_path: Path, lives: tuple[int, ...], how: str
) -> None:
    """Each request of smolagents began a session: every prompt was edited anew, and the provider's cache was lost. A
    restart began one, too."""
    make_answer, reword = REWORDINGS[how]
    model = ScriptedModel(*(make_answer(n) for n in range(6)), "Done.")
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": "Find the fault."}]
    numbers = iter(range(7))
    async with run_upstream(model) as upstream:
        for requests in lives:
            async with run_proxy(upstream.port, db=str(tmp_path / "store.sqlite3")) as proxy:
                for n in islice(numbers, requests):
                    found = await proxy.post({"model": "m", "messages": messages})
                    assert found.status == 200
                    messages += [reword(make_answer(n)), {"role": "user", "content": f"Observation: nothing in {n}."}]
                assert [kind for _, kind in await branches(proxy)] == ["main"]


@pytest.mark.parametrize("other", ["Calling tools: call_9876543", "I look", "Nothing."])
async def test_another_text_than_the_answer_begins_a_session(other: str) -> None:
    step = make_calls(("call_1234567", "read"), text="I look at the first file.", path="a.py")
    async with run_upstream(ScriptedModel(step, "Done.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy)
        session = (await agent.say("Hello")).session
        agent.messages[1] = {"role": "assistant", "content": other}
        assert (await agent.say("Go on")).session != session


async def test_without_a_name_an_answer_in_other_words_and_without_calls_is_not_ours() -> None:
    async with run_upstream(ScriptedModel("One.", "Two.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy)
        session = (await agent.say("Hello")).session
        agent.messages[1] = {"role": "assistant", "content": "Something else."}
        assert (await agent.say("Go on")).session != session


@pytest.mark.parametrize("line", [(), (b"x-session-id: s",)])
async def test_after_a_restart_every_branch_continues_where_it_was(tmp_path: Path, line: tuple[bytes, ...]) -> None:
    db = str(tmp_path / "store.sqlite3")
    model = ScriptedModel(*(f"Answer {n}." for n in range(50)))
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, db=db) as proxy:
            agent = Agent(proxy, line)
            session = (await agent.say("Hello")).session
            await agent.say("Go on")
            branch = Agent(proxy, line, messages=agent.messages[:2])
            await branch.say("Go back")
            other = Agent(proxy, line, messages=[SYSTEM | {"content": "You explore."}])
            explored = (await other.say("Explore")).session
            kinds = await branches(proxy)
        async with run_proxy(upstream.port, db=db) as proxy:
            for one in (branch, agent, other, agent, branch):
                one.proxy = proxy
                assert (await one.say("And?")).session == (explored if one is other else session)
            assert len(await branches(proxy)) == len(kinds), "no branch was begun anew"


@pytest.mark.parametrize("line", [(), (b"x-session-id: s",)])
async def test_after_leaving_memory_a_conversation_is_read_back(line: tuple[bytes, ...]) -> None:
    model = ScriptedModel(*(f"Answer {n}." for n in range(50)))
    async with run_upstream(model) as upstream, run_proxy(upstream.port, limits={"live_branches": 1}) as proxy:
        agents = [Agent(proxy, tuple(b"%b%d" % (one, n) for one in line)) for n in range(3)]
        sessions = [(await agent.say("Hello")).session for agent in agents]
        for _ in range(2):
            assert [(await agent.say("Go on")).session for agent in agents] == sessions
        assert len(proxy.app.services.live_sessions) <= 1
        assert [kind for _, kind in await branches(proxy)] == ["main"] * 3


async def test_a_conversation_killed_while_it_was_stored_continues_where_it_broke_off(tmp_path: Path) -> None:
    """Of a long request the first rows may be on disk, and not where its branch stands."""
    db, model = f"{tmp_path}/a.sqlite3", ScriptedModel("Yes.", "Well.")
    said = [("user", "One"), ("assistant", "So"), ("user", "Two"), ("assistant", "And"), ("user", "Three")]
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, db=db) as proxy:
            talk = [{"role": role, "content": text} for role, text in said]
            agent = Agent(proxy, (b"x-context-session: a",), messages=talk)
            assert (await agent.send()).status == 200
        with closing(sqlite3.connect(db)) as database, database:
            database.execute("DELETE FROM exchanges")
            database.execute("DELETE FROM messages WHERE position > 2")
            database.execute("UPDATE branches SET tip = x'', answer = NULL")
        async with run_proxy(upstream.port, db=db) as agent.proxy:
            await agent.say()
            await agent.say("Four")
            rows = await agent.proxy.rows("SELECT position, role, branch FROM messages ORDER BY seq")
            assert [kind for _, kind in await branches(agent.proxy)] == ["main"]
    assert [(position, role) for position, role, _ in rows] == list(enumerate(("user", "assistant") * 4))
    assert len({branch for *_, branch in rows}) == 1


async def test_mistral_vibe_names_its_session_by_x_affinity() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, b"x-affinity: s1")
        assert found.session == "s1"
