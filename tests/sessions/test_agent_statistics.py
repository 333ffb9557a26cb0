"""An agent's sessions learn from each other which tools' results are fetched again; another agent's do not."""

from __future__ import annotations

from proxy.context.branch_state import BranchState
from proxy.sessions.agent_statistics import MAX_AGENTS, MAX_FAULT_SESSIONS, MAX_SORTS, KnownAgents
from tests.conversations import make_request, system, user
from tests.exchange.test_page_faults import HITS, SEARCHES, asks, bring_results
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

REQUEST = make_request([system("You search."), user("x")])


def test_page_faults_of_a_session_count_for_other_sessions_of_its_agent() -> None:
    agents = KnownAgents()
    agents.find("a", REQUEST).note_faults("one", BranchState(exposed={"grep": 5}))
    agents.find("a", REQUEST).note_faults("one", BranchState(exposed={"grep": 8}, refetched={"grep": 1}))
    agents.find("a", REQUEST).note_faults("two", BranchState(exposed={"grep": 3, "read": 1}))
    assert agents.find("a", REQUEST).sum_other_faults("three") == {"grep": (11, 1), "read": (1, 0)}
    assert agents.find("a", REQUEST).sum_other_faults("one") == {"grep": (3, 0), "read": (1, 0)}
    assert agents.find("b", REQUEST).sum_other_faults("three") == {}
    other = make_request([system("You write."), user("x")])
    assert agents.find("a", other).sum_other_faults("three") == {}, "another agent of the tenant"


def test_page_faults_of_an_agent_are_forgotten_after_many_sessions_without_any() -> None:
    agents = KnownAgents()
    agents.find("a", REQUEST).note_faults("one", BranchState(exposed={"grep": 5}, refetched={"grep": 4}))
    for n in range(MAX_FAULT_SESSIONS - 1):
        agents.find("a", REQUEST).note_faults(f"later {n}", BranchState())
    assert agents.find("a", REQUEST).sum_other_faults("new") == {"grep": (5, 4)}
    agents.find("a", REQUEST).note_faults("last", BranchState())
    assert agents.find("a", REQUEST).sum_other_faults("new") == {}


def test_the_number_of_remembered_agents_and_result_kinds_is_bounded() -> None:
    agents = KnownAgents()
    for n in range(MAX_AGENTS + 5):
        agents.find(f"t{n}", REQUEST).note_faults("one", BranchState(exposed={"grep": 1}))
    assert agents.find("t4", REQUEST).sum_other_faults("two") == {}
    many = BranchState(exposed={f"tool{n}": 1 for n in range(MAX_SORTS + 5)})
    agents.find("many", REQUEST).note_faults("one", many)
    assert len(agents.find("many", REQUEST).sum_other_faults("two")) == MAX_SORTS


async def test_fault_statistics_are_kept_per_agent_and_tenant() -> None:
    model = ScriptedModel(*SEARCHES, asks("grep", 8, pattern="value"), "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look for it")
        await bring_results(agent, HITS)
        [(tenant,)] = await proxy.rows("SELECT tenant FROM sessions")
        asked = make_request([user("Look for it")])
        cut, fetched = proxy.app.services.known_agents.find(tenant, asked).sum_other_faults("b")["grep looks"]
        assert cut >= 1
        assert fetched == 1
        assert proxy.app.services.known_agents.find("another", asked).sum_other_faults("b") == {}
