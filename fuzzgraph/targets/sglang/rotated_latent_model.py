"""Latent attention of DeepSeek whose rotary parts are rotated, in steps that decode or verify.

The engine's own `DeepseekV2AttentionMLA` absorbs, and rotates queries and keys or leaves that to
the kernel that converts them to FP8 (deepseek_common forward_mla.py, `_fuse_rope_for_trtllm_mla`).
A rotation turns each pair of columns by a quarter, a half, three quarters or not at all, as place
and pair say: so it is exact in every dtype. What the layer is given is turned back before, by which
attention is that of the latent rows where the engine turns each part once, by its own place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.targets.sglang.attention_model import Rope
from fuzzgraph.targets.sglang.deepseek_model import DeepseekLatentModel

__all__ = ["QuarterTurns", "RotatedDeepseekModel"]


class QuarterTurns:
    """A rotation, as a layer of DeepSeek calls its own: pairs of columns lie side by side.

    Args:
        positions: how many places it knows; columns: of what it rotates.
    """

    is_neox_style = False

    def __init__(self, positions: int, columns: int, device: torch.device) -> None:
        pairs = columns // 2
        counters = np.arange(positions * pairs, dtype=np.uint64)
        turns = (hash_counters(_KEY, counters) >> np.uint64(62)).reshape(positions, pairs)
        quarters = turns.astype(np.int64)
        table = torch.from_numpy(np.concatenate((_COS[quarters], _COS[quarters - 1]), -1))
        self.cos_sin_cache = torch.empty_like(table, device=device).copy_(table)
        """float32 [positions, columns], cosines first, as compiled kernels read it."""

    def __call__(
        self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys [T, heads, columns], rotated."""
        return self._turned(q, positions, 1), self._turned(k, positions, 1)

    def back(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """What becomes these rows [T, heads, columns] when it is rotated."""
        return self._turned(rows, positions, -1)

    def _turned(self, rows: torch.Tensor, positions: torch.Tensor, way: int) -> torch.Tensor:
        cos, sin = self.cos_sin_cache[positions][:, None].to(rows.dtype).chunk(2, -1)
        sin = sin * way
        first, second = rows[..., 0::2], rows[..., 1::2]
        pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
        return pairs.flatten(-2)


_KEY = 71
"""Of the turns among all that is drawn by counters."""
_COS = np.array((1, 0, -1, 0), dtype=np.float32)
"""Of 0 to 3 quarters; of one quarter less it is their sine."""


class RotatedDeepseekModel(DeepseekLatentModel):
    """The same layer, with a rotation, as decode runners have a model.

    Args:
        rope: the engine's layer knows by itself how it hands its backend the rotary part.
    """

    def __init__(self, config: EngineConfig, device: torch.device, rope: Rope = "apart") -> None:
        places, columns = content_for(config).max_positions, config.head_dim - config.v_head_dim
        self.rotation = QuarterTurns(places, columns, device)
        super().__init__(config, device)

    def without_weights(self, kind: type[Any], expanded: Any, **more: Any) -> Any:
        return super().without_weights(kind, expanded, rotary_emb=self.rotation, **more)

    def qkv(
        self, input_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of what the engine rotates what it has to be given."""
        q, k, v = super().qkv(input_ids, positions)
        return self._before(q, positions), self._before(k, positions), v

    def _before(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rank = self._config.v_head_dim
        heads = rows.unflatten(-1, (-1, self._config.head_dim))
        rotary = self.rotation.back(heads[..., rank:], positions)
        return torch.cat((heads[..., :rank], rotary), -1).flatten(1)
