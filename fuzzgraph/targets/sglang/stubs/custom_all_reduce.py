"""The custom all-reduce of a server's ranks, stood in for by how much it takes.

Sums are the group's own (`tp_groups.Group`). What the engine's code asks of the communicator itself
is whether it takes the tokens of all data-parallel ranks; then graphs of decodes gather them by a
sum (sglang dp_attention.py `_decode_sum_len_fits_custom_all_reduce`, from 0.5.23 on).
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.release import engine_module

_DATA_RANKS = "sglang.srt.layers.dp_attention"
_COMMUNICATOR = "sglang.srt.distributed.device_communicators.custom_all_reduce_v2"


def custom_all_reduce(config: EngineConfig) -> Any:
    """The one of a config; None if it has none."""
    if not config.all_reduce_kib:
        return None
    made = object.__new__(engine_module(_COMMUNICATOR).CustomAllReduceV2)
    made.disabled, made.max_size = False, config.all_reduce_kib << 10
    return made


def with_custom_all_reduce(can: Capabilities) -> Capabilities:
    """A target's, with one where it has decodes and this release gathers by a sum what the
    communicator takes."""
    ranks = engine_module(_DATA_RANKS)
    sums = hasattr(ranks, "_decode_sum_len_fits_custom_all_reduce")
    return can.replace(custom_all_reduce=sums and "decode" in can.modes)
