"""Kernels that draw by probabilities: drafts that stay by the target model's alone, and the largest
of them made to add up to 1.

Sources: sgl-kernel 0.3, csrc/speculative/speculative_sampling.cuh, and sglang 0.5.18 to 0.5.23,
csrc/speculative/sampling.cuh; FlashInfer 0.6.18, sampling.py `top_k_renorm_probs`.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory, as_numbers

__all__ = ["top_k_renorm_probs", "tree_speculative_sampling_target_only"]

_VERIFIER = "sglang 0.5.18 to 0.5.23, csrc/speculative/sampling.cuh"
_RENORM = "FlashInfer 0.6.18, sampling.py"


def tree_speculative_sampling_target_only(
    predicts: Tensor1,
    accept_index: Tensor2,
    accept_token_num: Tensor1,
    candidates: Tensor2,
    retrive_index: Tensor2,
    retrive_next_token: Tensor2,
    retrive_next_sibling: Tensor2,
    uniform_samples: Tensor2,
    uniform_samples_for_final_sampling: Tensor1,
    target_probs: Tensor3,
    draft_probs: Tensor3,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Which drafts of each row's tree stay, and the token that follows, drawn by what is left of
    the target model's probabilities where the last one that stays stands.

    Args:
        predicts: int32 [B * D] the token behind each that stays; others stay as they are.
        accept_index: int32 [B, S] places of those that stay, the root first; the same.
        accept_token_num: int32 [B] how many stay, without the root.
        candidates: int64 [B, D] tokens, the root first; retrive_index: their places in `predicts`;
            retrive_next_token, retrive_next_sibling: first child and next sibling, -1 for none.
        uniform_samples: float32 [B, D]; uniform_samples_for_final_sampling: float32 [B].
        target_probs: float32 [B, D, V]; draft_probs: the same, of what is taken away; of each
            draft that does not stay it gets the target's.
        threshold_single: a draft of this probability stays whatever the number is.
        threshold_acc: probabilities of siblings, added up, are divided by it.
        deterministic: whether sums are taken in one order.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("tree_speculative_sampling_target_only", _VERIFIER)
    rows, width = candidates.shape
    for name, tensor in (
        ("candidates", candidates),
        ("retrive_index", retrive_index),
        ("retrive_next_token", retrive_next_token),
        ("retrive_next_sibling", retrive_next_sibling),
    ):
        call.needs_dtype(name, tensor, torch.int64)
        call.needs_shape(name, tensor, rows, width)
        call.needs_contiguous(name, tensor)
    call.needs_dtype("accept_index", accept_index, torch.int32)
    call.needs_shape("accept_index", accept_index, rows, None)
    call.needs_contiguous("accept_index", accept_index)
    for name, tensor, size in (
        ("predicts", predicts, rows * width), ("accept_token_num", accept_token_num, rows)
    ):  # fmt: skip
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_shape(name, tensor, size)
        call.needs_contiguous(name, tensor)
    numbers = (
        ("uniform_samples", uniform_samples, (rows, width)),
        ("uniform_samples_for_final_sampling", uniform_samples_for_final_sampling, (rows,)),
        ("target_probs", target_probs, (rows, width, None)),
        ("draft_probs", draft_probs, (rows, width, target_probs.shape[2])),
    )
    for name, tensor, shape in numbers:
        call.needs_dtype(name, tensor, torch.float32)
        call.needs_shape(name, tensor, *shape)
        call.needs_contiguous(name, tensor)
    for name, value in (("threshold_single", threshold_single), ("threshold_acc", threshold_acc)):
        call.needs(0 <= value <= 1, f"{name} must be in 0..1", value)
    launch(
        _VERIFY,
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=candidates,
        retrive_index=retrive_index,
        retrive_next_token=retrive_next_token,
        retrive_next_sibling=retrive_next_sibling,
        uniform_samples=uniform_samples,
        uniform_samples_for_final_sampling=uniform_samples_for_final_sampling,
        target_probs=target_probs,
        draft_probs=draft_probs,
        threshold_single=threshold_single,
        threshold_acc=max(threshold_acc, 1e-9),
    )


def _verify_by_target(
    memory: KernelMemory,
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
) -> None:
    places, children = memory.ints(retrive_index), memory.ints(retrive_next_token)
    siblings, tokens = memory.ints(retrive_next_sibling), memory.ints(candidates)
    coins, last = as_numbers(uniform_samples), as_numbers(uniform_samples_for_final_sampling)
    longest = accept_index.shape[1]
    for row in range(len(tokens)):
        at, kept, mass = 0, [int(places[row, 0])], 0.0
        while len(kept) < longest:
            child = int(children[row, at])
            while child != -1:
                here = (np.array([row]), np.array([at]), np.array([tokens[row, child]]))
                part = float(memory.numbers("target_probs", target_probs, *here)[0])
                mass += part
                enough = coins[row, at] < mass / threshold_acc or part >= threshold_single
                if part > 0 and enough:
                    break
                memory.store("draft_probs", draft_probs, np.array([part]), *here)
                child = int(siblings[row, child])
            if child == -1:
                break
            memory.store("predicts", predicts, np.array([tokens[row, child]]), np.array(kept[-1:]))
            kept.append(int(places[row, child]))
            at, mass = child, 0.0
        rest = as_numbers(target_probs[row, at])
        if len(kept) < longest:  # a draft was taken away here
            rest = np.maximum(rest - as_numbers(draft_probs[row, at]), 0.0)
        drawn = _first_beyond(rest, float(last[row]))
        memory.store("predicts", predicts, np.array([drawn]), np.array(kept[-1:]))
        count, stays = len(kept), np.array(kept)
        of_row = np.full(count, row)
        memory.store("accept_index", accept_index, stays, of_row, np.arange(count))
        memory.store("accept_token_num", accept_token_num, np.array([count - 1]), np.array([row]))


def _first_beyond(parts: np.ndarray, number: float) -> int:
    """The first token with which the parts add up to more than `number` of them all; the last one
    that has a part where none does."""
    sums = np.cumsum(parts)
    beyond = np.flatnonzero((sums > number * sums[-1]) & (parts > 0))
    found = beyond[:1] if len(beyond) else np.flatnonzero(parts > 0)[-1:]
    return int(found[0]) if len(found) else len(parts) - 1


def top_k_renorm_probs(probs: Tensor2, top_k: Tensor1 | int) -> torch.Tensor:
    """The k largest probabilities of each row, made to add up to 1; zeros for all others.

    Of equals at the border all stay, as they are no smaller than the k-th.

    Args:
        probs: float32 [B, V].
        top_k: [B], or one for all rows; above V all stay.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("top_k_renorm_probs", _RENORM)
    call.needs_dtype("probs", probs, torch.float32, torch.float16, torch.bfloat16)
    if isinstance(top_k, torch.Tensor):
        call.needs_shape("top_k", top_k, len(probs))
    kept = torch.empty_like(probs, memory_format=torch.contiguous_format)
    launch(_RENORMALISE, probs=probs, top_k=top_k, kept=kept)
    return kept


def _renormalise(
    memory: KernelMemory, *, probs: torch.Tensor, top_k: torch.Tensor | int, kept: torch.Tensor
) -> None:
    parts = as_numbers(probs)
    counts = memory.ints(top_k) if isinstance(top_k, torch.Tensor) else np.full(len(parts), top_k)
    for row, (part, count) in enumerate(zip(parts, counts.tolist(), strict=True)):
        least = np.sort(part)[-min(max(count, 1), len(part))]
        stays = np.where(part >= least, part, 0.0)
        memory.store("kept", kept, (stays / stays.sum())[None], np.array([row]))


_VERIFY = ModelKernel("tree_speculative_sampling_target_only", _verify_by_target, _VERIFIER)
_RENORMALISE = ModelKernel("top_k_renorm_probs", _renormalise, _RENORM)
