"""The case: one engine config and a history of replay steps, without tensors.

A case is small strict JSON. Tensor contents follow from its seed, so it means the same on every
machine; its content digest is its name. `words` holds the nouns, `ladder` what
follows from the captured sizes, `coherence` says which cases make sense, `files` reads and writes
them. What a case looks like in memory is `layout`'s job.
"""

from __future__ import annotations

from fuzzgraph.case.capture_sizes import captured_size, ladder, padded_size, raw_size, replayed_size
from fuzzgraph.case.coherence import validate
from fuzzgraph.case.files import case_schema, decode_case, digest, encode_case, load_case
from fuzzgraph.case.model import (
    SCHEMA_VERSION,
    BatchRow,
    Case,
    EngineConfig,
    Mode,
    ReplayStep,
    Via,
)

__all__ = [
    "SCHEMA_VERSION",
    "BatchRow",
    "Case",
    "EngineConfig",
    "Mode",
    "ReplayStep",
    "Via",
    "captured_size",
    "case_schema",
    "decode_case",
    "digest",
    "encode_case",
    "ladder",
    "load_case",
    "padded_size",
    "raw_size",
    "replayed_size",
    "validate",
]
