"""Canonical JSON and its digest: the one byte form that signatures, receipts and the event chain hash."""

from __future__ import annotations

import msgspec

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces (contracts.md, section 1). Equal values give equal bytes."""
    return _encoder.encode(value)


def sha256_hex(value: object) -> str:
    """The lower-case SHA-256 of `canonical_json(value)`."""
    # OpenSSL costs more to load than a whole decision; only what signs and chains pays for it.
    import hashlib

    return hashlib.sha256(canonical_json(value)).hexdigest()
