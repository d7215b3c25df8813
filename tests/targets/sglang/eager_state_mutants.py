"""Planted bugs of what hybrid models leave in the prefix cache's slots without a graph alone, each
of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.gdn import DeltaNetTarget
from fuzzgraph.targets.sglang.backends.kda import ChannelDecayTarget
from fuzzgraph.targets.sglang.backends.lightning import LightningTarget
from fuzzgraph.targets.sglang.backends.mamba2 import Mamba2Target
from fuzzgraph.targets.sglang.runners.hybrid_prefill import FlatGatesPrefillTarget
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import T, with_changed_sessions


def _slots_of_neighbours(target: T) -> T:
    """Each row's state is kept where that of the row at the other end should be."""

    def change(session: Any) -> None:
        line = 'mamba_track_indices=getattr(forward_batch, "mamba_track_indices", None),'
        other = "mamba_track_indices=forward_batch.mamba_track_indices.flip(0),"
        change_line(session.backend.linear_attn_backend, "_forward_metadata", line, other)

    return with_changed_sessions(target, change)


def gdn() -> DeltaNetTarget:
    return _slots_of_neighbours(DeltaNetTarget("sglang-gdn", "decode"))


def kda() -> ChannelDecayTarget:
    return _slots_of_neighbours(ChannelDecayTarget("sglang-kda", "decode"))


def mamba() -> Mamba2Target:
    return _slots_of_neighbours(Mamba2Target("sglang-mamba", "decode"))


def lightning() -> LightningTarget:
    return _slots_of_neighbours(LightningTarget("sglang-lightning", "decode"))


def kda_prefill() -> FlatGatesPrefillTarget:
    """Inputs of the convolution are kept for other rows; graphs have tables of their own."""

    def change(session: Any) -> None:
        recurrent = session.backend.linear_attn_backend
        stock = recurrent.init_forward_metadata

        def flipped(forward_batch: Any) -> None:
            stock(forward_batch)
            metadata = recurrent.forward_metadata
            if metadata.has_mamba_track_mask:
                metadata.conv_states_mask_indices = metadata.conv_states_mask_indices.flip(0)

        recurrent.init_forward_metadata = flipped

    return with_changed_sessions(FlatGatesPrefillTarget("sglang-kda-glm-prefill"), change)
