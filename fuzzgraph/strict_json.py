"""Reads JSON that somebody else may have written: of one shape, every key of an object once."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


@overload
def decode_json(text: bytes | str) -> Any: ...
@overload
def decode_json(text: bytes | str, shape: type[T]) -> T: ...
def decode_json(text: bytes | str, shape: Any = Any) -> Any:
    """The value of a JSON text, as a record of the shape where one is given.

    Of a key that stands twice, one reader takes the first value and another the last: what a person
    or a tool has checked need not be what is used.

    Raises:
        one of `errors.UNREADABLE`: not JSON, not of this shape, nested too deep, or a key twice.
    """
    value = _decoder(shape).decode(text)
    json.loads(text if isinstance(text, str) else text.decode(), object_pairs_hook=_each_key_once)
    return value


@lru_cache(maxsize=32)
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def _each_key_once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key!r} stands twice in one object")
        seen.add(key)
