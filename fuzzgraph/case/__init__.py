"""The case: one engine config and a history of replay steps, without tensors.

A case is small strict JSON. Tensor contents follow from its seed, so it means the same on every
machine; its content digest is its name. `model` holds case, step and row; `engine_config` the
config, whose fields are the table of dimensions (`dimension` says what a row can say);
`capture_sizes` what follows from the captured sizes; `coherence` and `config_rules` say which cases
are valid; `files` reads and writes them; `kv_groups` the KV cache groups. What a case looks like in
memory is `layout`'s job.
"""

from __future__ import annotations

from fuzzgraph.case.capture_sizes import (
    captured_size,
    ladder,
    padded_size,
    rank_sizes,
    raw_size,
    replayed_size,
)
from fuzzgraph.case.coherence import validate
from fuzzgraph.case.engine_config import (
    BOUNDS_OF_KEYS,
    DIMENSIONS,
    LONGEST_CONTEXT,
    SPEC_MODES,
    EngineConfig,
    Mode,
)
from fuzzgraph.case.files import case_schema, decode_case, digest, encode_case, load_case, save_case
from fuzzgraph.case.kv_groups import (
    attention_layers,
    attention_outputs,
    group_configs,
    output_of,
    recurrent_layers,
)
from fuzzgraph.case.model import SCHEMA_VERSION, BatchRow, Case, ReplayStep, Via, driven_inputs
from fuzzgraph.case.verify_budgets import cuts_rows

__all__ = [
    "BOUNDS_OF_KEYS",
    "DIMENSIONS",
    "LONGEST_CONTEXT",
    "SCHEMA_VERSION",
    "SPEC_MODES",
    "BatchRow",
    "Case",
    "EngineConfig",
    "Mode",
    "ReplayStep",
    "Via",
    "attention_layers",
    "attention_outputs",
    "captured_size",
    "case_schema",
    "cuts_rows",
    "decode_case",
    "digest",
    "driven_inputs",
    "encode_case",
    "group_configs",
    "ladder",
    "load_case",
    "output_of",
    "padded_size",
    "rank_sizes",
    "raw_size",
    "recurrent_layers",
    "replayed_size",
    "save_case",
    "validate",
]
