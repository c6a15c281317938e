"""Encoding between rows and values: JSON columns, optional enums, and nothing else."""

from __future__ import annotations

from typing import TypeVar, cast

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
        return cast(T, decoder.decode(text))
    except msgspec.DecodeError as error:
        raise StoreError(
            "store_row_malformed",
            f"a stored {kind} can't be read: {error}",
            hint="the store was changed by something else: loopx doctor",
        ) from error


def raw_or_none(raw: msgspec.Raw) -> str | None:
    """The text of an encoded value for a column; None for an encoded null."""
    text = bytes(raw).decode()
    return None if text == "null" else text
