"""A model of one layer of attention and Mamba2, as sglang runs Nemotron-H.

The recurrent layer is the engine's own `NemotronHMambaDecoderLayer`, which breaks a prefill graph
itself, around the mixer of `mamba2_model`. Its norm and what ranks exchange around it are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.recurrent_layers.mamba2 import scan_heads
from fuzzgraph.targets.offline.demands import demand_lookup, demand_size
from fuzzgraph.targets.offline.mixer_weights import mixer_width
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import FORWARD
from fuzzgraph.targets.sglang.hybrid_model import COMPUTED, HybridModel
from fuzzgraph.targets.sglang.mamba2_model import Mamba2Model
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.hybrid_pools import described_nemotron

NEMOTRON = "sglang.srt.models.nemotron_h"


class NemotronModel(Mamba2Model):
    """Tokens, and both layers over them."""

    describe = staticmethod(described_nemotron)

    layers = HybridModel.layers

    def _make_recurrent(self, config: EngineConfig, device: torch.device) -> None:
        super()._make_recurrent(config, device)
        self.recurrent = _layer_around(self.mixer, self.place)

    def _recur(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        hidden = demand_lookup(self.columns, input_ids, "input_ids", FORWARD)
        given = call_with_known(
            self.recurrent.forward,
            hidden_states=hidden,
            residual=None,  # up to 0.5.20, where it is given back too
            forward_batch=forward_batch,
        )
        out = given[0] if isinstance(given, tuple) else given
        demand_size(out, len(input_ids), mixer_width(self._config), COMPUTED, FORWARD)
        found: torch.Tensor = out[:, : scan_heads(self._config).output]
        return found


class _NoBoundary:
    """What surrounds the mixer from 0.5.21 on, without norms and without other ranks."""

    def prepare(self, hidden: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        return hidden

    def finish(self, hidden: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        return hidden

    @contextlib.contextmanager
    def exit(self, forward_batch: Any) -> Iterator[Any]:
        """Its end in 0.5.21."""
        yield Stub(skips_reduction=False, finish=lambda hidden: hidden)


def _layer_around(mixer: Any, place: int) -> Any:
    """The engine's layer, which hands its input on to the mixer."""
    kind = engine_module(NEMOTRON).NemotronHMambaDecoderLayer
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    layer.layer_id, layer.mixer = place, mixer
    # By release.
    layer.norm, layer.boundary = torch.nn.Identity(), _NoBoundary()
    layer.layer_communicator = Stub(should_fuse_mlp_allreduce_with_next_layer=lambda _: False)
    return layer
