"""`--linear-attn-backend triton`: KDA beside Triton attention, as in Kimi Linear.

The engine's own `HybridLinearAttnBackend` holds `KDAAttnBackend` and the other one, as
`backends/gdn.py` has it for gated delta nets. Its states lie transposed to theirs in the engine's
`MambaPool`, its gate has a number for each channel, and decodes and verifies take kernels of their
own. Up to 0.5.9 its convolution had three tensors; verifies are checked by its backend since 0.5.16
and handed raw gates by the model since 0.5.17 (sglang kimi_linear.py).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import NotInRelease
from fuzzgraph.ports import GraphEngine
from fuzzgraph.recurrent_layers.channel_decay import CHANNELS
from fuzzgraph.targets.sglang.backends.gdn import DeltaNetSession, DeltaNetTarget
from fuzzgraph.targets.sglang.channel_decay_model import ChannelDecayModel
from fuzzgraph.targets.sglang.delta_net_model import LAYER
from fuzzgraph.targets.sglang.release import is_before, release
from fuzzgraph.targets.sglang.stubs.hybrid_pools import KDA_BACKEND, KIMI


def demand_safe_gate(config: EngineConfig) -> None:
    """Refuse a config whose decays have a bound on a release whose models have none.

    Raises:
        NotInRelease: none of its models sets one.
    """
    if config.safe_gate and is_before((0, 5, 17)):
        raise NotInRelease(
            f"sglang {release()} has no model that bounds KDA's decays: safe_gate must be false"
        )


class ChannelDecaySession(DeltaNetSession):
    """One hybrid backend and one decode runner with its captured graphs."""

    model_class = ChannelDecayModel
    output = "channel_delta"
    tracking_since = (0, 5, 16)

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        demand_safe_gate(config)
        super().__init__(config, graphs)


class ChannelDecayTarget(DeltaNetTarget):
    """A model with KDA on the sglang release that this process holds."""

    layer = "KDA"
    session = ChannelDecaySession
    recurrent_modules = (KIMI, LAYER, KDA_BACKEND)
    positions = CHANNELS
    periodic = False
    rings = MappingProxyType({"state_rings": True})
    since = MappingProxyType(
        {
            "decode": ((0, 5, 10), "keeps the inputs of KDA's convolution in three tensors, not"),
            "target_verify": ((0, 5, 17), "hands no verifies of KDA raw gates"),
        }
    )

    def __init__(self, name: str, mode: Literal["decode", "target_verify"]) -> None:
        super().__init__(name, mode)
        self.capabilities = self.capabilities.replace(safe_gates=True)
