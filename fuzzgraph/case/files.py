"""Cases as files: canonical JSON out, strict JSON in, the digest that names a case."""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from fuzzgraph.case.coherence import validate
from fuzzgraph.case.engine_config import DIMENSIONS, EngineConfig
from fuzzgraph.case.model import SCHEMA_VERSION, Case
from fuzzgraph.errors import UNREADABLE, InvalidCase, UsageError
from fuzzgraph.strict_json import decode_json


def encode_case(case: Case) -> bytes:
    """Canonical JSON: sorted keys, defaults omitted; equal cases give equal bytes."""
    return msgspec.json.encode(case, order="deterministic")


def digest(case: Case) -> str:
    """First 12 hex digits of the SHA-256 of the canonical JSON: the name of the case."""
    return hashlib.sha256(encode_case(case)).hexdigest()[:12]


def decode_case(text: bytes | str, where: str = "case") -> Case:
    """Parse and validate strict JSON.

    Raises:
        InvalidCase: not JSON, an unknown field, a wrong type, another schema version, or a
            contradiction; `where` is named in the message.
    """
    try:
        found = decode_json(text)
    except UNREADABLE as error:
        raise InvalidCase(
            f"{where}: not valid JSON ({error}). Take the case.json that a run wrote."
        ) from None
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version is None:
        raise InvalidCase(
            f"{where}: not a case: it has no schema_version. Take the case.json that a run wrote."
        )
    if version != SCHEMA_VERSION:
        raise InvalidCase(
            f"{where}: schema_version={version!r} is not supported; this FuzzGraph reads "
            f"{SCHEMA_VERSION}. Convert the case, or use the FuzzGraph that wrote it."
        )
    try:
        return validate(msgspec.convert(found, Case))
    except msgspec.ValidationError as error:
        raise InvalidCase(f"{where}: {error}. 'fuzzgraph schema case' prints the form.") from None
    except InvalidCase as error:
        raise InvalidCase(f"{where}: {error}") from None


def load_case(path: str | PathLike[str]) -> Case:
    """Read a case file.

    Raises:
        InvalidCase: the file cannot be read, or `decode_case` refuses it.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidCase(
            f"{path}: cannot be read ({error.strerror}). Give the path of a case file."
        ) from None
    return decode_case(text, where=str(path))


def save_case(case: Case, path: str | PathLike[str]) -> None:
    """Write a case file that `load_case` reads.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        Path(path).write_bytes(encode_case(validate(case)) + b"\n")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}). Give a path in a folder that exists."
        ) from None


def case_schema() -> dict[str, Any]:
    """The published JSON schema of a case file."""
    schema = msgspec.json.schema(Case)
    fields = schema["$defs"][EngineConfig.__name__]["properties"]
    for name, row in DIMENSIONS.items():
        if row.spec.bounds is not None:
            fields[name]["minimum"], fields[name]["maximum"] = row.spec.bounds
    return schema
