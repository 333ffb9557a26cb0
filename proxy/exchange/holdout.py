"""The control arm of an experiment: a share of the sessions runs as `passthrough`, so that savings can be measured.

The arm is an HMAC of the session's name, so each replica and each restart gives the same one. A request that names its
policy, or whose session has one, is in no arm; neither is one whose usual policy does not rewrite.
"""

from __future__ import annotations

import hmac
from typing import Literal

from proxy.context.policy import Policy
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn

Arm = Literal["", "control", "managed"]
"""Empty where no experiment is under way."""
CONTROL_POLICY = "passthrough"


def choose_arm(share: float, salt: str, tenant: str, session: str) -> Arm:
    """Return the arm of a session. share: the part of all sessions that is in the control arm."""
    if not share:
        return ""
    name = f"{tenant}\0{session}".encode("utf-8", "surrogateescape")
    drawn = hmac.digest(b"context-proxy-experiment:" + salt.encode(), name, "sha256")
    return "control" if int.from_bytes(drawn[:8]) < share * 2**64 else "managed"


def find_arm(services: Services, turn: Turn, policy: Policy, requested: str) -> Arm:
    """Return the arm of the turn's session. policy: without the arm. requested: the one that is named."""
    settings, session = services.settings, turn.located.branch.live_session
    known = session.stored_decisions
    has_own = requested in services.policies or (known is not None and bool(known.settings.policy))
    if policy.mode != "rewrite" or has_own or turn.dialect.returns_rows:
        return ""
    salt = settings.identity.salt.get_secret_value()
    return choose_arm(settings.experiment.control, salt, turn.tenant, session.session)
