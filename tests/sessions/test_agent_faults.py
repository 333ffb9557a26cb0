"""An agent's sessions learn from each other which tools' results are fetched again; another agent's do not."""

from __future__ import annotations

from proxy.context.branch_state import BranchState
from proxy.sessions.live import MAX_AGENTS, MAX_FAULT_SESSIONS, MAX_SORTS, AgentFaults
from tests.conversations import make_request, system, user
from tests.exchange.test_page_faults import HITS, asks
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

REQUEST = make_request([system("You search."), user("x")])


def test_what_a_session_counts_is_there_for_others_of_its_agent_and_not_for_itself() -> None:
    faults = AgentFaults()
    faults.note_counts("a", REQUEST, "one", BranchState(exposed={"grep": 5}))
    faults.note_counts("a", REQUEST, "one", BranchState(exposed={"grep": 8}, refetched={"grep": 1}))
    faults.note_counts("a", REQUEST, "two", BranchState(exposed={"grep": 3, "read": 1}))
    assert faults.count_elsewhere("a", REQUEST, "three") == {"grep": (11, 1), "read": (1, 0)}
    assert faults.count_elsewhere("a", REQUEST, "one") == {"grep": (3, 0), "read": (1, 0)}
    assert faults.count_elsewhere("b", REQUEST, "three") == {}
    other = make_request([system("You write."), user("x")])
    assert faults.count_elsewhere("a", other, "three") == {}, "another agent of the tenant"


def test_what_an_agent_showed_is_forgotten_after_so_many_sessions_that_show_nothing() -> None:
    faults = AgentFaults()
    faults.note_counts("a", REQUEST, "one", BranchState(exposed={"grep": 5}, refetched={"grep": 4}))
    for n in range(MAX_FAULT_SESSIONS - 1):
        faults.note_counts("a", REQUEST, f"later {n}", BranchState())
    assert faults.count_elsewhere("a", REQUEST, "new") == {"grep": (5, 4)}
    faults.note_counts("a", REQUEST, "last", BranchState())
    assert faults.count_elsewhere("a", REQUEST, "new") == {}


def test_agents_and_sorts_are_bounded() -> None:
    faults = AgentFaults()
    for n in range(MAX_AGENTS + 5):
        faults.note_counts(f"t{n}", REQUEST, "one", BranchState(exposed={"grep": 1}))
    assert faults.count_elsewhere("t4", REQUEST, "two") == {}
    many = BranchState(exposed={f"tool{n}": 1 for n in range(MAX_SORTS + 5)})
    faults.note_counts("many", REQUEST, "one", many)
    assert len(faults.count_elsewhere("many", REQUEST, "two")) == MAX_SORTS


async def test_the_proxy_remembers_them_by_agent() -> None:
    calls = [asks("grep", 1, pattern="value"), *(asks("grep", n, pattern=f"x{n}") for n in range(2, 8))]
    model = ScriptedModel(*calls, asks("grep", 8, pattern="value"), "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look for it")
        for text in (HITS, *(f"nothing {n}" for n in range(2, 8)), HITS):
            agent.brings(text)
            await agent.say()
        [(tenant,)] = await proxy.rows("SELECT tenant FROM sessions")
        asked = make_request([user("Look for it")])
        [(cut, fetched)] = proxy.app.services.agent_faults.count_elsewhere(tenant, asked, "b").values()
        assert cut >= 1
        assert fetched == 1
        assert proxy.app.services.agent_faults.count_elsewhere("another", asked, "b") == {}
