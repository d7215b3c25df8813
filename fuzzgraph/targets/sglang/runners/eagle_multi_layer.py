"""The engine's runner of multi-layer EAGLE's draft-extend, which replays one graph for each step.

Up to 0.5.14 a step's graph writes the inputs of the next one; since 0.5.15 all steps share theirs,
and the worker moves the tokens on between two replays, which is done here as it does it.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.base import execute
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DraftRunnerDriver, RunnerKind

MULTI_LAYER = RunnerKind(
    "multi_layer",
    "sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner",
    "MultiLayerEagleDraftExtendCudaGraphRunner",
    mode="draft_extend",
    max_topk=1,  # one step, so one layer, fewer than draft tokens
)
_KERNELS = "sglang.srt.speculative.multi_layer_eagle_utils"
_ALL_STEPS = "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner"


class MultiLayerRunnerDriver(DraftRunnerDriver):
    """All steps of the release's runner; what is shown are the inputs of the first."""

    _all_steps: Any

    def _open(self, runner: type, worker: Any) -> Any:
        self._module = engine_module(MULTI_LAYER.module)
        with replaced_names((self._module,), {MULTI_LAYER.runner: runner}):
            self._all_steps = getattr(self._module, _ALL_STEPS)(worker)
        shared = hasattr(self._all_steps, "prepare")
        return self._all_steps if shared else self._all_steps.get_runner(0)

    def _capturing(self) -> tuple[Any, ...]:
        return tuple(reversed(self._all_steps.runners))

    def replay(self) -> Any:
        """(hidden states of the first step, the tokens that each step predicts).

        Copied step by step, as the later workers do: the next step's graph has the same pool.
        """
        batch, accepted = self._given
        if self._engine is self._all_steps:
            return self._replay_shared(batch)
        self._all_steps.reset_buffers(batch, Stub(accept_lens=accepted))
        tokens = []
        for step, runner in enumerate(self._all_steps.runners):
            found = execute(runner, batch, init_state=step == 0)
            tokens.append(found.topk_index.clone())
            if step == 0:
                hidden = found.hidden_states.clone()
        return hidden, tokens

    def _replay_shared(self, batch: Any) -> Any:
        steps, buffers = self._all_steps, self._all_steps.buffers
        steps.prepare(batch)
        last = len(steps.runners) - 1
        tokens = []
        for step in range(last + 1):
            found, _, chosen = steps.replay(step)
            tokens.append(chosen.clone())
            if step == 0:
                hidden = found.hidden_states.clone()
            if step < last:
                _rotate()(
                    buffers.input_ids[: steps.raw_num_tokens],
                    buffers.extend_start_loc[: steps.raw_bs],
                    buffers.extend_seq_lens[: steps.raw_bs],
                    chosen,
                    buffers.select_index[: steps.raw_bs],
                )
        return hidden, tokens


def _rotate() -> Any:
    """The engine's kernel that moves each row's tokens on by one."""
    kernels = engine_module(_KERNELS)
    return getattr(kernels, "rotate_input_ids", None) or kernels.rotate_input_ids_triton
