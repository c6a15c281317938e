"""Leases: one row per resource, and an epoch that only grows. The epoch decides; the clock only gives liveness."""

from __future__ import annotations

from loopx.control_plane.errors import ConflictError
from loopx.control_plane.ids import Epoch
from loopx.control_plane.work_items.lease import Lease
from loopx.store.connection import Tx


def acquire(tx: Tx, resource: str, owner: str, ttl_ms: int, now_ms: int, *, dead_owner: str | None = None) -> Epoch:
    """Take a free or expired lease, or that of an owner who is proved dead.

    Raises ConflictError (`lease_held`) when another holds it; its owner and expiry are in the error's data.
    """
    row = tx.one(
        "leases.acquire",
        resource=resource,
        owner=owner,
        expires_at_ms=now_ms + ttl_ms,
        now_ms=now_ms,
        dead_owner=dead_owner,
    )
    if row is not None:
        return Epoch(row["epoch"])
    held = get(tx, resource)
    raise ConflictError(
        "lease_held",
        f"{resource} is held by {held.owner if held else 'another process'}",
        hint="wait until it ends, or stop the process that holds it",
        data={
            "resource": resource,
            "owner": held.owner if held else None,
            "expires_at_ms": held.expires_at_ms if held else None,
        },
    )


def get(tx: Tx, resource: str) -> Lease | None:
    """The lease as it stands, expired or not."""
    row = tx.one("leases.get", resource=resource)
    if row is None:
        return None
    return Lease(
        resource=row["resource"], owner=row["owner"], epoch=Epoch(row["epoch"]), expires_at_ms=row["expires_at_ms"]
    )


def renew(tx: Tx, resource: str, epoch: Epoch, ttl_ms: int, now_ms: int) -> bool:
    """Extend a lease that is still held and not expired; False when it is lost."""
    changed = tx.run("leases.renew", resource=resource, epoch=epoch, expires_at_ms=now_ms + ttl_ms, now_ms=now_ms)
    return changed == 1


def release(tx: Tx, resource: str, epoch: Epoch) -> None:
    """Give it up; a lease that is lost already is left alone."""
    tx.run("leases.release", resource=resource, epoch=epoch)
