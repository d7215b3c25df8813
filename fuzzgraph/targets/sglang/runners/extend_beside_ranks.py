"""EAGLE's draft-extend without a graph on one of several data-parallel ranks.

The order is that of the engine's worker and of its model runner: metadata for the requests there
are, then rows of no request, so that ranks can exchange what they compute, then the forward, then
these rows are taken away (sglang eagle_info_v2.py prepare_for_extend_to_fill_draft_kvcache, later
eagle_worker_common.py prepare_for_draft_extend; model_runner.py _forward_raw). A rank without
requests prepares metadata for the rows it is padded with (forward_idle, later eager_runner.py
_execute_idle). Padding and cutting are methods of the engine's batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.targets.sglang.attention_model import in_forward_context
from fuzzgraph.targets.sglang.forward_batch.data_ranks import cut_for_rank, pad_for_ranks
from fuzzgraph.targets.sglang.release import is_before
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

_GIVEN = (
    "input_ids",
    "positions",
    "out_cache_loc",
    "req_pool_indices",
    "seq_lens",
    "seq_lens_cpu",
    "seq_lens_sum",
)
EXTENDED = (
    "extend_seq_lens",
    "extend_seq_lens_cpu",
    "extend_prefix_lens",
    "extend_prefix_lens_cpu",
)
"""What a batch says of each row: new tokens and keys before them, for device and host."""
_PADS_EXTENDED = (0, 5, 19)
"""The first release that pads all of them (forward_batch_info.py _pad_inputs_to_size)."""


@dataclass(frozen=True, slots=True)
class Extended:
    """One forward, as the model got its batch and as its caller gets the outputs."""

    rows: int
    tokens: int
    """Those of no request included."""
    given: dict[str, torch.Tensor]
    """Copies of what the forward was given, numbers and lists as tensors."""
    outputs: Any
    """Logits and hidden states of the batch's own rows; None of a rank without requests."""


def extend_beside_ranks(given: Any, runner: ModelRunner, backend: Any, model: Any) -> Extended:
    """Run the batch without a graph, padded as the other ranks' rows ask for it."""
    idle = given.forward_mode.is_idle()
    outputs = None
    with in_forward_context(backend, given):
        if not idle:
            backend.init_forward_metadata(given)
        pad_for_ranks(given, runner)
        rows, tokens = given.batch_size, len(given.input_ids)
        shown = _given(given)
        if rows:
            if idle:
                backend.init_forward_metadata(given)
            outputs = model.forward(given.input_ids, given.positions, given)
            cut_for_rank(given, outputs)
    return Extended(rows, tokens, shown, None if idle else outputs)


def _given(batch: Any) -> dict[str, torch.Tensor]:
    names = _GIVEN if is_before(_PADS_EXTENDED) else (*_GIVEN, *EXTENDED)
    return {name: torch.as_tensor(getattr(batch, name)).clone() for name in names}
