"""Requests made from our own OpenAPI document, within it and against it: no error of ours, nothing it does not say.

Bounded to so many examples an operation, in an order that is the same each time.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case, SerializationContext
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from proxy.settings.load import Settings
from proxy.web.app import ContextProxy
from tests.web.api.conftest import ProxyWithData

pytestmark = pytest.mark.slow  # the requests are made while the file is collected
ON_ONE_STORE = True

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = 10
"""An operation; there are some sixty."""
ENDS = {("DELETE", "/api/sessions/{session}"), ("DELETE", "/api/tenants/{name}")}
"""Routes that would remove the data of the other calls."""


@schemathesis.serializer("application/x-ndjson")
def lines(_: SerializationContext, value: object) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else json.dumps(value).encode()


schema = schemathesis.openapi.from_dict(ContextProxy(Settings(db=":memory:", upstream="demo")).api.openapi())


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_api_behaves_as_its_description_says(case: Case[Any], proxy: ProxyWithData) -> None:
    places = case.path_parameters or {}
    if (case.method.upper(), case.path) not in ENDS and len(str(places.get("session", ""))) % 2:
        # Half of all names are one that is there, or nothing but 404 would ever be seen.
        case.path_parameters = {**places, "session": "talk"}
    if case.path == "/api/events" and str((case.query or {}).get("follow", True)).lower() == "true":
        case.query = {**(case.query or {}), "follow": "false"}  # or it would go on for ever
    case.call_and_validate(
        base_url=f"http://127.0.0.1:{proxy.proxy.port}",
        headers={"x-context-key": "cp-acme-admin"},
        checks=CHECKS,
        timeout=30,
    )
