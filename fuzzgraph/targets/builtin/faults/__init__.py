"""Planted faults: small patches on the built-in engine, each modelled on a bug of a real engine.

One module per class of bug. A fault replaces classes in `Components` and nothing else, so that the
healthy engine cannot be touched by it. How well they are found is `fuzzgraph.faults`' business.
"""

from __future__ import annotations

from fuzzgraph.targets.builtin.faults import (
    before_padding,
    encoder,
    forms,
    freed,
    frozen_scalars,
    kv_groups,
    late_copies,
    lengths,
    local_counts,
    metadata_upgrade,
    omissions,
    padded_outputs,
    reads,
    reallocated,
    spec_decode,
    stale_padding,
    stale_plan,
    state,
    stream_order,
    undersized,
)
from fuzzgraph.targets.builtin.faults.fault import Fault

__all__ = ["FAULTS", "Fault"]

FAULTS: tuple[Fault, ...] = (
    *undersized.FAULTS,
    *stale_padding.FAULTS,
    *lengths.FAULTS,
    *padded_outputs.FAULTS,
    *reads.FAULTS,
    *state.FAULTS,
    *encoder.FAULTS,
    *local_counts.FAULTS,
    *reallocated.FAULTS,
    *freed.FAULTS,
    *frozen_scalars.FAULTS,
    *stale_plan.FAULTS,
    *metadata_upgrade.FAULTS,
    *before_padding.FAULTS,
    *spec_decode.FAULTS,
    *omissions.FAULTS,
    *forms.FAULTS,
    *kv_groups.FAULTS,
    *late_copies.FAULTS,
    *stream_order.FAULTS,
)
