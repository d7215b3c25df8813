"""Mamba2 beside Triton attention, as in Falcon-H1 and Nemotron-H.

The engine's own `HybridLinearAttnBackend` holds both backends, as `backends/gdn.py` has it for
gated delta nets; the mixer, its projections and its kernels are the engine's own too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.gdn import DeltaNetSession, DeltaNetTarget
from fuzzgraph.targets.sglang.mamba2_model import MIXER, Mamba2Model
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.hybrid_pools import FALCON
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_MIXERS_KERNELS = {
    "causal_conv1d_fn_triton": "causal_conv1d_fn",
    "causal_conv1d_update_triton": "causal_conv1d_update",
}
"""Triton kernels that the mixer imports on a GPU only: its name for each -> the kernel's own."""
_KERNELS = (
    "sglang.kernels.ops.mamba.causal_conv1d_triton",
    "sglang.srt.layers.attention.mamba.causal_conv1d_triton",
)
_DISPATCH = (
    "sglang.kernels.ops.mamba.triton_ops.ssu_dispatch",
    "sglang.srt.layers.attention.mamba.ops.ssu_dispatch",
)
"""Which kernel updates states; the engine's scheduler asks for it once."""

TRACKING_SINCE = (0, 5, 13)
STATE_COLUMNS = (0, 128, 256)
"""Of a head: those of Nemotron-H and of the large Falcon-H1 beside the few that are narrow."""


@contextlib.contextmanager
def any_device() -> Iterator[None]:
    """Without a GPU, `device` of torch.cuda and of torch.cpu, which has none, does nothing."""
    if torch.cuda.is_available() or hasattr(torch.cpu, "device"):
        yield
        return
    torch.cpu.device = contextlib.nullcontext  # type: ignore[attr-defined]
    try:
        with replaced_names([torch.cuda], {"device": contextlib.nullcontext}):
            yield
    finally:
        del torch.cpu.device  # type: ignore[attr-defined]


class Mamba2Session(DeltaNetSession):
    """One hybrid backend and one decode runner with its captured graphs."""

    model_class = Mamba2Model
    output = "recurrent"
    tracking_since = TRACKING_SINCE

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        if config.dtype != "float32":
            self.output = "selective_scan"  # the same as the model's dtype rounds it
        super().__init__(config, graphs)

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        """Its kernels are launched on the device of their tensors, by a number that the CPU lacks
        (sglang mamba_ssm.py selective_state_update)."""
        return any_device()

    def _open_backend(self, runner: ModelRunner) -> Any:
        dispatch = engine_module(next(filter(has_module, _DISPATCH)))
        dispatch.initialize_mamba_selective_state_update_backend(runner.server_args)
        return super()._open_backend(runner)


class Mamba2Target(DeltaNetTarget):
    """A model with Mamba2 on the sglang release that this process holds."""

    layer = "Mamba2"
    session = Mamba2Session
    also_stood_in_for = ("the number of cores",)
    recurrent_modules = (FALCON, MIXER)
    head_dims = STATE_COLUMNS
    ranks = rings = MappingProxyType({})

    def __init__(self, name: str, mode: Literal["decode", "target_verify"]) -> None:
        super().__init__(name, mode)
        # Each layer of Falcon-H1 has both kinds of attention.
        self.capabilities = self.capabilities.replace(layer_types=False)

    def refused(self, config: EngineConfig) -> str | None:
        if 0 < config.state_track_interval < CONV_WIDTH:
            interval = f"state_track_interval={config.state_track_interval}"
            return f"{interval} is less than the {CONV_WIDTH} inputs of a convolution"
        return super().refused(config)

    def load(self) -> None:
        super().load()
        give_mixer_kernels()


def give_mixer_kernels() -> None:
    """Let the mixer convolve in Triton where there is no GPU."""
    mixer = engine_module(MIXER)
    kernels = engine_module(next(filter(has_module, _KERNELS)))
    for name, kernel in _MIXERS_KERNELS.items():
        if not hasattr(mixer, name):
            setattr(mixer, name, getattr(kernels, kernel))
