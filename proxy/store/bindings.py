"""The prompts that reasoning of models is bound to, as hashes: one row for each token that an answer handed out.

Without these rows the proxy cannot tell that a prompt would break a binding before it is sent. An upstream then refuses
the prompt, or leaves the reasoning out.
"""

from __future__ import annotations

from msgspec import Struct

MAX_BINDINGS = 10_000
"""Limit on the bindings of a session that are read back: the newest ones."""


class BindingRow(Struct, frozen=True, gc=False):
    """The prompt that one piece of reasoning was made behind. A later row of the same token is ignored."""

    tenant: str
    session: str
    token: bytes
    """Hash of the token."""
    system_tools: bytes
    chain: bytes
    """Hashes of the prompt as it was sent: outside of the messages, and the messages."""
    predecessor: bytes
    """Hash of the token before it in that prompt; empty for the first."""
    client: bytes
    """Hash of the prompt as the client had it; empty for reasoning that the client does not have."""
    created_at: float


TABLE = """
CREATE TABLE bindings (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    token BLOB NOT NULL,
    system_tools BLOB NOT NULL,
    chain BLOB NOT NULL,
    predecessor BLOB NOT NULL,
    client BLOB NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session, token)
)"""

INSERT_BINDING = """
INSERT INTO bindings (tenant, session, token, system_tools, chain, predecessor, client, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING"""

BINDINGS = """
SELECT tenant, session, token, system_tools, chain, predecessor, client, created_at FROM bindings
WHERE tenant = $1 AND session = $2 ORDER BY created_at DESC LIMIT $3"""
