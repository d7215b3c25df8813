"""The verify of blocks without a graph, on one of several data-parallel ranks.

The order is that of the engine's model runner (`_forward_raw`): rows of no request pad the batch,
so that ranks can exchange what they compute, its eager runner prepares metadata where the worker
has not, and calls the model, then these rows are taken away from what it gave. Padding, the eager
runner's part of each mode, and cutting are the engine's own; its copy of the batch into static
buffers is left out.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from fuzzgraph.targets.sglang.attention_model import in_forward_context
from fuzzgraph.targets.sglang.forward_batch.data_ranks import cut_for_rank
from fuzzgraph.targets.sglang.forward_batch.gathered_tokens import MODEL_RUNNER, pad_for_all
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.scheduler_ranks import SCHEDULER_RANKS

_EAGER_RUNNER = "sglang.srt.model_executor.runner.eager_runner"
BESIDE_RANKS = (SCHEDULER_RANKS, MODEL_RUNNER, _EAGER_RUNNER)
"""Modules of a release that run beside other ranks alone."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One forward beside other ranks."""

    rows: int
    tokens: int
    """Those of no request included."""
    computed: Any
    """What the model gave, for all rows."""
    outputs: Any
    """What the model runner hands on: of the batch's own rows."""


def verify_beside_ranks(given: Any, runner: ModelRunner, model: Any, *, planned: bool) -> Verified:
    """Run the batch without a graph, padded as the other ranks' rows ask for it.

    Args:
        given: the batch, as the worker hands it on; changed.
        planned: whether the worker has had metadata made for it.
    """
    if planned:
        given.mark_forward_metadata_ready()
    with in_forward_context(runner.attn_backend, given):
        pad_for_all(given, runner)
        rows, tokens = given.batch_size, len(given.input_ids)
        computed = _eager_runner(runner, model).execute(given)
        outputs = copy.copy(computed)
        cut_for_rank(given, outputs)
    return Verified(rows, tokens, computed, outputs)


def _eager_runner(runner: ModelRunner, model: Any) -> Any:
    kind = engine_module(_EAGER_RUNNER).EagerRunner
    made = object.__new__(kind)
    made.enable_pdmux = False
    # As where it does not copy inputs into buffers of its own (`SGLANG_EAGER_INPUT_NO_COPY`).
    made.load_batch = lambda batch, *_, **__: replace(batch)
    made.model_runner = runner.beside(
        _extend_forward_kwargs=lambda *_: {},
        _pp_kwargs=lambda *_: {},
        model=model,
        prefill_cuda_graph_runner=None,
    )
    return made
