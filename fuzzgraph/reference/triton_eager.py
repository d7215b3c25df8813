"""A second reference for attention: an eager Triton kernel over unpaged keys.

It shares with the first reference only which keys a query sees, not the arithmetic: another
language, another order of operations, exp2 for exp. Compiled on a GPU, else interpreted.
"""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from contextlib import nullcontext
from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.runtime import JITFunction

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import DTYPES, content_for
from fuzzgraph.lanes import lanes
from fuzzgraph.reference.geometry import encoder_keys, queries_of
from fuzzgraph.reference.pooled_keys import selected_keys
from fuzzgraph.world import Batch

# Elements of the largest intermediate of an interpreted program. An interpreted program costs much
# and an element little, so each program computes many queries; a compiled one computes one.
_INTERPRETED_ELEMENTS = 1 << 20


@triton.jit
def _attention(
    q,
    k,
    v,
    visible,
    out,
    queries,
    keys,
    scale,
    CAP: tl.constexpr,
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    head = tl.program_id(1)
    kv_head = head // GROUP
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)[:, None]
    key = tl.arange(0, BLOCK_KEYS)[None, :]
    dim = tl.arange(0, BLOCK_DIM)
    v_dim = tl.arange(0, BLOCK_V)
    pair = query * keys + key
    real = (query < queries) & (key < keys)
    seen = tl.load(visible + pair, mask=real, other=0) != 0
    row = query * (KV_HEADS * GROUP) + head
    weights = tl.load(
        q + row * HEAD_DIM + dim[None, :],
        mask=(query < queries) & (dim < HEAD_DIM)[None, :],
        other=0.0,
    )
    places = (pair * KV_HEADS + kv_head)[:, :, None]
    vectors = tl.load(
        k + places * HEAD_DIM + dim[None, None, :],
        mask=seen[:, :, None] & (dim < HEAD_DIM)[None, None, :],
        other=0.0,
    )
    products = vectors.to(tl.float32) * weights.to(tl.float32)[:, None, :]
    logits = tl.sum(products, axis=2) * scale
    if CAP > 0:
        # tanh(x) = 2 / (1 + exp(-2 x)) - 1.
        power = tl.exp2(logits * (-2.0 / CAP * 1.4426950408889634))
        logits = CAP * (2.0 / (1.0 + power) - 1.0)
    logits = tl.where(seen, logits, -1.0e30)
    # exp(x) = exp2(x * log2(e)).
    powers = tl.exp2((logits - tl.max(logits, axis=1)[:, None]) * 1.4426950408889634)
    powers = tl.where(seen, powers, 0.0)
    # A row that sees no key gives 0, not 0 / 0.
    total = tl.sum(powers, axis=1)
    share = powers / tl.where(total == 0.0, 1.0, total)[:, None]
    values = tl.load(
        v + places * V_HEAD_DIM + v_dim[None, None, :],
        mask=seen[:, :, None] & (v_dim < V_HEAD_DIM)[None, None, :],
        other=0.0,
    )
    result = tl.sum(share[:, :, None] * values.to(tl.float32), axis=1)
    tl.store(
        out + row * V_HEAD_DIM + v_dim[None, :],
        result,
        mask=(query < queries) & (v_dim < V_HEAD_DIM)[None, :],
    )


_INTERPRETED = not isinstance(_attention, JITFunction)


@lru_cache(maxsize=1)
def _device() -> torch.device:
    return torch.device("cpu" if _INTERPRETED else "cuda")


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    cap: int = 0,
) -> torch.Tensor:
    """float32 [T, Hq, Dv] on the host of q [T, Hq, D], k and v [T, L, Hkv, ...], visible [T, L]."""
    device = _device()
    out = torch.empty((*q.shape[:2], v.shape[3]), dtype=torch.float32, device=device)
    if not out.numel():
        return out.cpu()
    width, width_v = triton.next_power_of_2(q.shape[2]), triton.next_power_of_2(v.shape[3])
    keys = triton.next_power_of_2(max(k.shape[1], 1))
    room = max(1, _INTERPRETED_ELEMENTS // (keys * max(width, width_v)))
    side_by_side = 1
    # A power of two: Triton's blocks have no other sizes. The second term rounds `room` down.
    if _INTERPRETED:
        side_by_side = min(triton.next_power_of_2(len(q)), 1 << (room.bit_length() - 1))
    with lanes() if _INTERPRETED else nullcontext():
        _attention[(triton.cdiv(len(q), side_by_side), q.shape[1])](
            *(part.contiguous().to(device) for part in (q, k, v, visible.to(torch.uint8))),
            out,
            len(q),
            k.shape[1],
            scale,
            CAP=cap,
            QUERIES=side_by_side,
            KV_HEADS=k.shape[2],
            GROUP=q.shape[1] // k.shape[2],
            HEAD_DIM=q.shape[2],
            V_HEAD_DIM=v.shape[3],
            BLOCK_DIM=width,
            BLOCK_V=width_v,
            BLOCK_KEYS=keys,
        )
    return out.cpu()


def second_opinion(batch: Batch, config: EngineConfig, layer: int = 0) -> torch.Tensor:
    """[T, Hq, Dv] attention of a layer in the config's dtype; rows as `reference.expected` has."""
    content = content_for(config, layer)
    found = queries_of(batch, config)
    mrope = None if batch.mrope is None else torch.from_numpy(batch.mrope)
    q, _, _ = content.embed_qkv(
        torch.from_numpy(found.tokens), torch.from_numpy(found.positions), mrope
    )
    planes = content.kv_planes(found.key_tokens.ravel(), found.key_positions.ravel())
    k, v = _dequantized(planes, config, found.key_tokens.shape)
    scale = config.head_dim**-0.5
    if config.pooled_block:
        return _by_head(q, k, v, torch.from_numpy(selected_keys(batch, config)), scale)
    out = _run(q, k, v, torch.from_numpy(found.visible), scale, config.logit_cap)
    if batch.encoder_tokens.values.size:
        tokens, present = encoder_keys(batch, found.rows)
        planes = content.encoder_planes(tokens.ravel())
        k, v = _dequantized(planes, config, tokens.shape)
        out = out + _run(q, k, v, torch.from_numpy(present), scale)
    return out.to(DTYPES[config.dtype])


def _by_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same where each KV head has keys of its own; visible [T, Hkv, L]."""
    group = q.shape[1] // k.shape[2]
    parts = [
        _run(q[:, group * head : group * (head + 1)], k[:, :, head, None], v[:, :, head, None],
             visible[:, head], scale)
        for head in range(k.shape[2])
    ]  # fmt: skip
    return torch.cat(parts, 1).to(q.dtype)


def _dequantized(
    planes: tuple[torch.Tensor, ...], config: EngineConfig, shape: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 (keys, values), each [T, L, heads, columns]."""
    keys, values = content_for(config).numbers(planes, torch.float32)
    return keys.reshape(*shape, *keys.shape[1:]), values.reshape(*shape, *values.shape[1:])
