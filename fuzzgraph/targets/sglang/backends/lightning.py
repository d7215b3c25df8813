"""Lightning attention beside Triton attention, as in Ling 2.5 and its kin.

The engine's own `HybridLinearAttnBackend` holds `LightningAttentionBackend` and the other one, as
`backends/gdn.py` has it for gated delta nets. Its layer has no convolution, and slopes of its own
for each head, which the backend works out. Up to 0.5.17 Triton attention asks the pool for values
of layer 0, which such a model does not have there (sglang triton_backend.py, `get_value_buffer(0)`
in `__init__`), so servers took other backends beside it.
"""

from __future__ import annotations

from types import MappingProxyType

from fuzzgraph.recurrent_layers.decayed_attention import LINEAR_WIDTH
from fuzzgraph.targets.sglang.backends.gdn import DeltaNetSession, DeltaNetTarget
from fuzzgraph.targets.sglang.decayed_attention_model import DecayedAttentionModel
from fuzzgraph.targets.sglang.stubs.hybrid_pools import BAILING, LIGHTNING_BACKEND

BESIDE_TRITON = (0, 5, 18), "runs no models of lightning attention beside Triton attention"


class LightningSession(DeltaNetSession):
    """One hybrid backend and one decode runner with its captured graphs."""

    model_class = DecayedAttentionModel
    output = "linear"


class LightningTarget(DeltaNetTarget):
    """A model with lightning attention on the sglang release that this process holds."""

    layer = "lightning attention"
    session = LightningSession
    recurrent_modules = (BAILING, LIGHTNING_BACKEND)
    positions = LINEAR_WIDTH
    head_dims = (0,)
    branches = 1
    ranks = rings = MappingProxyType({})
    since = MappingProxyType(dict.fromkeys(("decode", "target_verify"), BESIDE_TRITON))
