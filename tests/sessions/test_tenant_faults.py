"""A tenant's sessions learn from each other which tools' results are fetched again; another tenant's do not."""

from __future__ import annotations

from proxy.context.branch_state import BranchState
from proxy.sessions.live import MAX_SORTS, MAX_TENANTS, TenantFaults
from tests.exchange.test_page_faults import HITS, asks
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel


def test_what_a_session_counts_is_there_for_others_and_not_for_itself() -> None:
    faults = TenantFaults()
    first = BranchState(exposed={"grep": 5}, refetched={"grep": 1})
    faults.add_counts("a", BranchState(), first)
    faults.add_counts("a", first, BranchState(exposed={"grep": 8}, refetched={"grep": 1}))
    assert faults.count_elsewhere("a", BranchState()) == {"grep": (8, 1)}
    assert faults.count_elsewhere("a", BranchState(exposed={"grep": 8}, refetched={"grep": 1})) == {"grep": (0, 0)}
    assert faults.count_elsewhere("b", BranchState()) == {}


def test_tenants_and_sorts_are_bounded() -> None:
    faults = TenantFaults()
    for n in range(MAX_TENANTS + 5):
        faults.add_counts(f"t{n}", BranchState(), BranchState(exposed={"grep": 1}))
    assert faults.count_elsewhere("t4", BranchState()) == {}
    faults.add_counts("many", BranchState(), BranchState(exposed={f"tool{n}": 1 for n in range(MAX_SORTS + 5)}))
    assert len(faults.count_elsewhere("many", BranchState())) == MAX_SORTS


async def test_the_proxy_remembers_them_by_tenant() -> None:
    calls = [asks("grep", 1, pattern="value"), *(asks("grep", n, pattern=f"x{n}") for n in range(2, 8))]
    model = ScriptedModel(*calls, asks("grep", 8, pattern="value"), "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look for it")
        for text in (HITS, *(f"nothing {n}" for n in range(2, 8)), HITS):
            agent.brings(text)
            await agent.say()
        [(tenant,)] = await proxy.rows("SELECT tenant FROM sessions")
        [(cut, fetched)] = proxy.app.services.tenant_faults.count_elsewhere(tenant, BranchState()).values()
        assert cut >= 1
        assert fetched == 1
        assert proxy.app.services.tenant_faults.count_elsewhere("another", BranchState()) == {}
