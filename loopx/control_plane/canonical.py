"""Canonical JSON and its digest: the one byte form that signatures, receipts and the event chain hash."""

from __future__ import annotations

import hashlib

import msgspec

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces (contracts.md, section 1). Equal values give equal bytes."""
    return _encoder.encode(value)


def sha256_hex(value: object) -> str:
    """The lower-case SHA-256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
