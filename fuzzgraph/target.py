"""Everything that the author of a target imports, in one place.

A target puts an engine behind `Target` and `Session`; docs/writing-a-target.md builds one. These
names are public: they stay, or a release says in its changelog what takes their place. Modules
that neither this one nor `fuzzgraph` itself exports are internal, but for
`fuzzgraph.targets.offline`, which has what an engine asks for that is written for a GPU.
"""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities, unsupported_setting
from fuzzgraph.case import (
    EngineConfig,
    Mode,
    attention_layers,
    attention_outputs,
    group_configs,
)
from fuzzgraph.content import Content, content_for
from fuzzgraph.handover import Excuse
from fuzzgraph.observation import Axis, Field, Observation, PaddingRule, Selects
from fuzzgraph.ports import CapturedGraph, GraphEngine, GroupPools, Pools, Session, Target
from fuzzgraph.row_mixing import mix_rows, mixed_outputs, split_mixed, with_mixed
from fuzzgraph.world import (
    FIRST_PAGE,
    FIRST_ROW,
    RESERVED_PAGE,
    RESERVED_ROW,
    RESERVED_SLOT,
    VOCAB,
    Batch,
    IntArray,
    Ragged,
)

__all__ = [
    # the two protocols, and what they are handed
    "Target",
    "Session",
    "EngineConfig",
    "Mode",
    "GraphEngine",
    "CapturedGraph",
    # what a target can express
    "Capabilities",
    "unsupported_setting",
    # what a session declares and shows
    "Field",
    "Axis",
    "Selects",
    "PaddingRule",
    "Excuse",
    "Pools",
    "GroupPools",
    "Observation",
    # the logical batch, and the numbers that the harness gives out
    "Batch",
    "Ragged",
    "IntArray",
    "FIRST_ROW",
    "FIRST_PAGE",
    "RESERVED_ROW",
    "RESERVED_PAGE",
    "RESERVED_SLOT",
    "VOCAB",
    # what tokens, keys and values hold
    "Content",
    "content_for",
    # several attention layers, each with a KV cache group
    "attention_layers",
    "attention_outputs",
    "group_configs",
    # the layer behind attention that mixes rows
    "mix_rows",
    "mixed_outputs",
    "with_mixed",
    "split_mixed",
]
