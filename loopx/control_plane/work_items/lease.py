"""A lease: who may write for a resource, until when, with a fencing token that only grows."""

from __future__ import annotations

import msgspec

from loopx.control_plane.ids import Epoch

CLAIM_LEASE_MS = 45 * 60 * 1000
TURN_LEASE_MS = 5 * 60 * 1000


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A held lease. The owner's name is for people; only `epoch` is a fence."""

    resource: str
    owner: str
    epoch: Epoch
    expires_at_ms: int
