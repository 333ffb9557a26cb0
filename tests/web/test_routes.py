from __future__ import annotations

import pytest
from fastapi import APIRouter

from proxy.web.routes import READ, RouteTable

router = APIRouter()


@router.get("/api/sessions/{session}", openapi_extra=READ)
@router.post("/api/sessions/{session}", openapi_extra=READ)
async def one(session: str) -> str:
    return session


@router.get("/api/export")
async def export() -> str:
    return ""


DOORS = RouteTable(router.routes)


@pytest.mark.parametrize(
    ("method", "path", "kind", "planes"),
    [
        ("GET", "/healthz", "health", set()),
        ("GET", "/readyz", "health", set()),
        ("GET", "/metrics", "metrics", {"metrics", "admin"}),
        ("GET", "/dashboard", "pages", set()),
        ("GET", "/dashboard/app.js", "pages", set()),
        ("GET", "/api/sessions/a", "api", {"admin", "read"}),
        ("POST", "/api/sessions/a", "api", {"admin"}),
        ("DELETE", "/api/sessions/a", "api", {"admin"}),
        ("GET", "/api/export", "api", {"admin"}),
        ("GET", "/api", "api", {"admin"}),
        ("GET", "/api/", "api", {"admin"}),
        ("GET", "/api/sessions/a/b", "api", {"admin"}),
        ("GET", "/api/sessions/a\n", "api", {"admin", "read"}),
        ("GET", "/api/../v1/models", "api", {"admin"}),
        ("GET", "/healthz/x", "api", {"admin"}),
        ("GET", "/metrics/", "api", {"admin"}),
        ("GET", "//api/export", "data", {"data"}),
        ("GET", "/API/export", "data", {"data"}),
        ("GET", "/apis", "data", {"data"}),
        ("GET", "/v1/../api/export", "data", {"data"}),
        ("POST", "/v1/chat/completions", "data", {"data"}),
        ("POST", "/s/a/api/export", "data", {"data"}),
        ("GET", "/", "data", {"data"}),
        ("GET", "", "data", {"data"}),
    ],
)
def test_every_path_has_one_door_and_it_is_closed(method: str, path: str, kind: str, planes: set[str]) -> None:
    found = DOORS.find_route(method, path)
    assert (found.kind, set(found.planes)) == (kind, planes)
