"""Short convolutions beside Triton attention, as in LFM2 and its kin.

From 0.5.15 on the engine's own `ShortConvHybridAttnBackend` holds both backends, as
`backends/gdn.py` has it for gated delta nets; the layer asks it which slots its states have, and
convolves by itself. Before, the layer asks the request pool, beside `Mamba2AttnBackend`, of which
nothing is read. Servers refuse Triton attention for LFM2 and LFM2-MoE and take it for LFM2-VL,
whose layers are the same (sglang arg_groups/model_hook.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.targets.sglang.backends.gdn import DeltaNetSession, DeltaNetTarget
from fuzzgraph.targets.sglang.backends.mamba2 import any_device
from fuzzgraph.targets.sglang.gated_convolution_model import LFM2_MODEL, GatedConvolutionModel
from fuzzgraph.targets.sglang.release import has_module, is_before
from fuzzgraph.targets.sglang.stubs.convolution import convolves_as_on_cuda, put_convolution
from fuzzgraph.targets.sglang.stubs.hybrid_pools import LFM2
from fuzzgraph.world import Batch

SHORT_CONV_BACKEND = "sglang.srt.layers.attention.linear.short_conv_backend"
_SLOTS = "sglang short_conv_backend.py _refresh_cache_indices: as _replay_metadata has them"
_BY_SLOT = (0, 5, 11), "takes rows of requests for slots of states"
_VERIFIED = (0, 5, 19), "verifies no drafts of such models"
FOR_VALUES = (0, 5, 18), "runs no short convolutions beside Triton attention"


class ShortConvSession(DeltaNetSession):
    """One hybrid backend and one decode runner with its captured graphs."""

    model_class = GatedConvolutionModel
    output = "gated_conv"

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        with any_device(), convolves_as_on_cuda():
            yield

    def _more_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        shown = super()._more_fields(config)
        if not has_module(SHORT_CONV_BACKEND):
            return shown
        slots = replace(shown[0], name="cache_indices", repeats="state_slots", source=_SLOTS)
        return (*shown, slots)

    def _recurrent_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        shown = super()._recurrent_tensors(size)
        if not has_module(SHORT_CONV_BACKEND):
            return shown
        return {**shown, "cache_indices": self.backend.short_conv_backend._cache_indices}


class ShortConvTarget(DeltaNetTarget):
    """A model with short convolutions on the sglang release that this process holds."""

    layer = "short convolution"
    session = ShortConvSession
    periodic = False
    also_stood_in_for: tuple[str, ...] = ("the number of cores",)
    recurrent_modules = (LFM2, LFM2_MODEL, SHORT_CONV_BACKEND)
    head_dims = (0,)
    branches = 1
    ranks = rings = MappingProxyType({})
    since = MappingProxyType({"decode": _BY_SLOT, "target_verify": _VERIFIED})

    def __init__(self, name: str, mode: Literal["decode", "target_verify"]) -> None:
        super().__init__(name, mode)
        if mode == "decode":
            self.also_stood_in_for += ("the compiled convolution, by a model",)
        self.capabilities = self.capabilities.replace(state_tracking=False)

    def unserved(self, config: EngineConfig) -> str | None:
        if is_before(FOR_VALUES[0]):
            return (
                "up to 0.5.17 triton_backend.py asks the KV pool for values of layer 0, "
                "which is a convolution in every LFM2"
            )
        return super().unserved(config)

    def load(self) -> None:
        super().load()
        put_convolution()
