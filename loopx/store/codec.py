"""Encoding between rows and values: JSON columns, optional enums, and nothing else."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from loopx.control_plane.errors import StoreError

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_decoders: dict[object, msgspec.json.Decoder[object]] = {}


def dump(value: object) -> str:
    """JSON text of any wire value."""
    return _encoder.encode(value).decode()


def load(text: str, kind: type[T]) -> T:
    """The value of a JSON column. Raises StoreError (`store_row_malformed`): such a row was not written by LoopX."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        value = decoder.decode(text)
    except msgspec.DecodeError as error:
        raise StoreError(
            "store_row_malformed",
            f"a stored {kind.__name__} can't be read: {error}",
            hint="the store was changed by something else: loopx doctor",
        ) from error
    assert isinstance(value, kind) or kind is not None
    return value  # type: ignore[return-value]
