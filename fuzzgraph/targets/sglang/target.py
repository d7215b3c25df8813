"""What every target on a released sglang is, and loads."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.sglang.excuses import EXCUSES
from fuzzgraph.targets.sglang.release import SGLANG
from fuzzgraph.targets.sglang.runners.decode import runner_module
from fuzzgraph.targets.sglang.stubs.platform import platform_of_a_gpu

STOOD_IN_FOR = (
    "distributed groups (one process is the case's rank)",
    "the device's graph (the graph engine captures)",
    "the model runner, whose constructor loads a model",
)
"""In every target, see `stubs/`."""


_HEADS = ((16, 16), (32, 32), (64, 64), (128, 128))
"""Of queries and values. Products of tiles take 16 columns at least: triton.compile for sm_90."""
_LATENT_HEADS = ((576, 512),)
"""DeepSeek's rows of latent attention, which all kernels are built for."""


class SglangTarget(ReleasedTarget):
    """One mode of one runner or backend of the sglang release that this process holds."""

    package = "sglang"
    excuses = EXCUSES
    also_stood_in_for: tuple[str, ...] = ()
    """What is in this target, beyond `STOOD_IN_FOR`."""

    @property
    def stood_in_for(self) -> tuple[str, ...]:
        return (*STOOD_IN_FOR, *self.also_stood_in_for)

    @property
    def device_capabilities(self) -> Capabilities:
        """On a GPU, where kernels are compiled: heads as wide as they take, and dtypes that servers
        run. Float32 is left out, since products of tiles round it there."""
        can = self.capabilities
        heads = _LATENT_HEADS if can.attentions == ("mla",) else _HEADS
        # What tells states of recurrent layers apart is exact in float16 and not in bfloat16.
        dtypes = ("float16",) if can.recurrent_state else ("bfloat16", "float16")
        return can.replace(dtypes=dtypes, head_dims=heads, max_head_dim=heads[-1][0])

    def modules(self) -> tuple[str, ...]:
        """Modules of the release that it drives."""
        return ()

    def load(self) -> None:
        SGLANG.load(*self.modules(), runner_module(), "sglang.srt.speculative.eagle_info")
        platform_of_a_gpu()
