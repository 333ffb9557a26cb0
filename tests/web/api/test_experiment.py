"""`GET /api/report`, over the wire."""

from __future__ import annotations

from tests.faulty import faulty
from tests.running import running
from tests.scripted import Scripted


async def test_the_report_is_there_before_any_session_is() -> None:
    async with faulty(Scripted("Hi.")) as upstream, running(upstream.port, experiment={"control": 0.1}) as there:
        answer = await there.get("/api/report")
        assert answer.status == 200
        found = answer.json()
        assert (found["share"], found["control_sessions"], found["managed_sessions"]) == (0.1, 0, 0)
        assert found["verdict"] == "Not known: there are no sessions with a bill in both arms."
        assert (await there.get("/api/report?since=-1")).status == 422
