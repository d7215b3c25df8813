"""Attention over dense float64 keys, written apart from the models: loops, no shared code."""

from __future__ import annotations

import math

import torch


def dense_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """([T, Hq, Dv] float64 outputs, [Hq, T] lse) of one row.

    Args:
        q: [T, Hq, D]; keys [n, Hkv, D]; values [n, Hkv, Dv].
        visible: bool [T, n].
    """
    tokens, heads, _ = q.shape
    group = heads // keys.shape[1]
    out = torch.zeros(tokens, heads, values.shape[2], dtype=torch.float64)
    lse = torch.full((heads, tokens), -math.inf, dtype=torch.float64)
    for token in range(tokens):
        for head in range(heads):
            logits, held = [], []
            for key in range(len(keys)):
                if visible[token, key]:
                    logit = scale * float(
                        q[token, head].double() @ keys[key, head // group].double()
                    )
                    if softcap:
                        logit = softcap * math.tanh(logit / softcap)
                    logits.append(logit)
                    held.append(values[key, head // group].double())
            extra = [] if sinks is None else [float(sinks[head])]
            if not logits and not extra:
                continue
            total = sum(math.exp(logit) for logit in logits + extra)
            lse[head, token] = math.log(total)
            for logit, value in zip(logits, held, strict=True):
                out[token, head] += math.exp(logit) / total * value
    return out, lse
