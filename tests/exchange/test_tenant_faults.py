"""A tenant's sessions learn from each other which tools' results are fetched again; another tenant's do not."""

from __future__ import annotations

from proxy.context.session import Session
from proxy.exchange.tenant_faults import SORTS, TENANTS, TenantFaults
from tests.exchange.test_page_faults import HITS, asks
from tests.faulty import faulty
from tests.running import Agent, running
from tests.scripted import Scripted


def test_what_a_session_counts_is_there_for_others_and_not_for_itself() -> None:
    faults = TenantFaults()
    first = Session(exposed={"grep": 5}, refetched={"grep": 1})
    faults.note("a", Session(), first)
    faults.note("a", first, Session(exposed={"grep": 8}, refetched={"grep": 1}))
    assert faults.elsewhere("a", Session()) == {"grep": (8, 1)}
    assert faults.elsewhere("a", Session(exposed={"grep": 8}, refetched={"grep": 1})) == {"grep": (0, 0)}
    assert faults.elsewhere("b", Session()) == {}


def test_tenants_and_sorts_are_bounded() -> None:
    faults = TenantFaults()
    for n in range(TENANTS + 5):
        faults.note(f"t{n}", Session(), Session(exposed={"grep": 1}))
    assert faults.elsewhere("t4", Session()) == {}
    faults.note("many", Session(), Session(exposed={f"tool{n}": 1 for n in range(SORTS + 5)}))
    assert len(faults.elsewhere("many", Session())) == SORTS


async def test_the_proxy_remembers_them_by_tenant() -> None:
    calls = [asks("grep", 1, pattern="value"), *(asks("grep", n, pattern=f"x{n}") for n in range(2, 8))]
    model = Scripted(*calls, asks("grep", 8, pattern="value"), "Done.")
    async with faulty(model) as upstream, running(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look for it")
        for text in (HITS, *(f"nothing {n}" for n in range(2, 8)), HITS):
            agent.brings(text)
            await agent.say()
        [(tenant,)] = await proxy.rows("SELECT tenant FROM sessions")
        [(cut, fetched)] = proxy.app.parts.faults.elsewhere(tenant, Session()).values()
        assert cut >= 1
        assert fetched == 1
        assert proxy.app.parts.faults.elsewhere("another", Session()) == {}
