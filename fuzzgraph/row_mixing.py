"""The layer behind attention that mixes the rows of a batch, as real models do.

Attention keeps rows apart, and what padded rows leave behind is nobody's result. Layers behind it
do not: one scale is worked out over the whole tensor, tokens are counted, a row is taken with a
factor of zero. There undefined padded rows reach live ones. `EngineConfig.row_mixing` chooses the
layer; a target runs it behind the engine's own attention, inside the captured forward, and shows
what it gives as the output `mixed` (`router`: as `moe`, of the rank's own tokens).

Sources: vLLM PR 37442 (one FP8 scale over the batch), vLLM PR 38436 (block scales shared by the
rows of a tile), tokenspeed PR 741 (quantisation and routing behind an eager break), vLLM PR 36939
(masked gathers that end in 0 * NaN).
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.fp8_weights import E4M3_PART, E4M3_SMALLEST_STEP

__all__ = [
    "coarseness",
    "mix_rows",
    "mixed_outputs",
    "mixes_rows",
    "served",
    "split_mixed",
    "with_mixed",
]

_FP8 = torch.float8_e4m3fn
_FP8_MAX = 448.0
# A tensor of zeros has no scale: kernels divide by a small number instead.
_LEAST_SCALE = 1.0e-12
LARGEST_VALUE = 8.0
"""More than any healthy row of attention holds: values of the model lie in [-4, 4], those of an
encoder in [-2, 2] are added to them, and what nobody owns in the KV pool is at most 6."""
EXPERTS = 2


def mixes_rows(config: EngineConfig) -> bool:
    """Whether a layer stands behind attention that gives the output `mixed`."""
    return config.row_mixing in ("fp8_scale", "nan")


def mixed_outputs(config: EngineConfig) -> tuple[str, ...]:
    """The outputs that a target promises beside `attention`: `mixed`, or none."""
    return ("mixed",) if mixes_rows(config) else ()


def mix_rows(attended: torch.Tensor, config: EngineConfig) -> torch.Tensor:
    """What the layer makes of all rows of attention, padded ones included; same shape and dtype.

    Where every row is finite, each row stays what it was: exactly with `nan`, within `coarseness`
    with `fp8_scale`. Runs as torch operations without a host read, so that it can be captured.

    Args:
        attended: [tokens, ...] in the model's dtype, as the engine's attention left it.
        config: of the case; without a layer that mixes rows the tensor itself comes back.
    """
    if not mixes_rows(config) or not attended.numel():
        return attended
    return _through_fp8(attended) if config.row_mixing == "fp8_scale" else _with_zeros(attended)


def _through_fp8(attended: torch.Tensor) -> torch.Tensor:
    """Quantised to float8_e4m3fn by one scale over the whole tensor, and back.

    Source: vLLM scaled_fp8_quant with a dynamic scale per tensor, amax / 448.
    """
    wide = attended.float()
    # The largest of numbers and NaN is NaN, and then all rows are.
    scale = (wide.abs().amax() / _FP8_MAX).clamp(min=_LEAST_SCALE)
    stored = (wide / scale).clamp(-_FP8_MAX, _FP8_MAX).to(_FP8)
    return (stored.float() * scale).to(attended.dtype)


def _with_zeros(attended: torch.Tensor) -> torch.Tensor:
    """Each row with all others added with a factor of zero: NaN and infinity survive that."""
    # The absolute value: a sum of zeros may be -0.0, and would turn the sign of a zero in a row.
    return attended + (attended * 0.0).sum(0, keepdim=True).abs()


def coarseness(name: str, config: EngineConfig) -> tuple[float, float]:
    """(relative, absolute): how far the layer itself takes a live row of output `name` from the
    truth, whatever finite values healthy padded rows hold.

    The scale is at most `LARGEST_VALUE` / 448, so a small number is off by at most half of the
    smallest step at that scale; others are off by a part of themselves.
    """
    if name != "mixed" or config.row_mixing != "fp8_scale":
        return 0.0, 0.0
    return E4M3_PART, E4M3_SMALLEST_STEP / 2 * LARGEST_VALUE / _FP8_MAX


def served(token_ids: torch.Tensor, counted: torch.Tensor | int) -> torch.Tensor:
    """bool [tokens]: whether an expert of the router takes the token.

    The first `counted` tokens are routed by their ids, in order; the experts share the counted ones
    out, and a token that comes when its expert is full is dropped. So a live token's result depends
    on the count: one token too many makes room that a right engine does not have.

    Source: GShard (capacity from the number of tokens, first come first served); sglang
    layers/moe/topk.py `_mask_topk_ids_padded_region` (what num_token_non_padded does not count gets
    no expert).
    """
    tokens = torch.arange(len(token_ids), device=token_ids.device)
    is_counted = tokens < counted
    taken = torch.zeros_like(is_counted)
    for expert in range(EXPERTS):
        mine = is_counted & (token_ids % EXPERTS == expert)
        taken = taken | (mine & (mine.cumsum(0) <= (counted + expert) // EXPERTS))
    return taken


def with_mixed(attended: torch.Tensor, config: EngineConfig) -> torch.Tensor:
    """Attention and, beside it in each row, what the layer makes of it: for engines that hand out
    one tensor, and cut rows off it.

    Args:
        attended: [tokens, columns].

    Returns:
        [tokens, columns], or [tokens, 2 * columns] where there is such a layer.
    """
    if not mixes_rows(config):
        return attended
    return torch.cat((attended, mix_rows(attended, config)), dim=-1)


def split_mixed(handed_out: torch.Tensor, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Copies of the outputs in what `with_mixed` gave: each [tokens, heads, v_head_dim]."""
    heads, columns = config.num_q_heads, config.v_head_dim
    names = ("attention", *mixed_outputs(config))
    parts = handed_out.view(-1, len(names), heads, columns).unbind(1)
    return {name: part.clone() for name, part in zip(names, parts, strict=True)}
