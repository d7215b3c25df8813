"""The second attention layer: its page map, its pool and its model, in a KV cache group of its own.

It is made of the same classes as the first one, for the config that its group sees. Names of its
buffers begin with `swa_`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch

from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.ports import GroupPools
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata
from fuzzgraph.targets.builtin.metadata.views import Tables
from fuzzgraph.targets.builtin.model import BuiltinModel, ForwardInputs

if TYPE_CHECKING:
    from fuzzgraph.targets.builtin.components import Components

SECOND = "swa_"
Value = TypeVar("Value")


def prefixed(named: dict[str, Value]) -> dict[str, Value]:
    """Buffers of the second layer by the names under which the target declares them."""
    return {SECOND + name: value for name, value in named.items()}


@dataclass(frozen=True)
class SecondLayer:
    """What runners build the second layer's metadata from, and run it with."""

    config: EngineConfig
    """As its KV cache group sees it."""
    model: BuiltinModel
    tables: Tables

    @property
    def pools(self) -> GroupPools:
        return GroupPools(self.tables.req_to_token.table, self.tables.kv.planes)

    def attend(
        self, inputs: ForwardInputs, slots: torch.Tensor, metadata: FullMetadata
    ) -> torch.Tensor:
        """[tokens, heads, v_head_dim]; the new keys and values go to `slots` of its own pool."""
        own = replace(
            inputs,
            out_cache_loc=slots,
            state_indices=None,
            num_token_non_padded=None,
            crosses=False,
        )
        return self.model.forward(own, metadata)["attention"]


def second_layer(
    config: EngineConfig, components: Components, local: LocalTokens, device: torch.device
) -> SecondLayer | None:
    """The layer behind `swa_window`; None where the config has a single layer."""
    if not config.swa_window:
        return None
    _, shape = group_configs(config)
    kv = components.kv(shape, device)
    tables = Tables(components.swa_to_token(shape, device), kv, None)
    model = components.model(shape, kv, None, local, device, layer=1)
    return SecondLayer(shape, model, tables)
