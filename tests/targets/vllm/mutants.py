"""Planted bugs of vLLM's runner, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import FlashAttentionTarget, TritonTarget


class _PaddedRowsKeepLengths(RunnerSession):
    """`_prepare_inputs` leaves lengths behind the live rows as the last batch had them."""

    def capture(self) -> None:
        super().capture()
        padded_lengths_stay(self.runner)


def padded_lengths_stay(runner: Any) -> None:
    """From now on lengths behind the live rows stay as the last batch had them."""
    prepare = runner._prepare_inputs

    def prepared(*args: Any, **kwargs: Any) -> Any:
        before = runner.seq_lens.clone()
        made = prepare(*args, **kwargs)
        live = runner.input_batch.num_reqs
        runner.seq_lens[live:] = before[live:]
        return made

    runner._prepare_inputs = prepared


class _FirstPagesOnly(RunnerSession):
    """The runner drops the pages that a request that goes on has got since."""

    def _step(self, batch: Any) -> None:
        table = self.runner.input_batch.block_table
        table.append_row = lambda *_: None
        super()._step(batch)
        del table.append_row


class _TablesElsewhere(RunnerSession):
    """The builder hands over a table of its own, made anew for each batch."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def copied(*args: Any, **kwargs: Any) -> Any:
            built = build(*args, **kwargs)
            built.block_table = built.block_table.clone()
            return built

        return super()._kept(copied)


class _PromptsStay(RunnerSession):
    """A request that moves to another row leaves the length of its prompt behind."""

    def _step(self, batch: Any) -> None:
        persistent = self.runner.input_batch
        condense = type(persistent).condense

        def condensed(*args: Any, **kwargs: Any) -> Any:
            before = persistent.num_prompt_tokens.copy()
            moved = condense(persistent, *args, **kwargs)
            persistent.num_prompt_tokens[:] = before
            return moved

        persistent.condense = condensed
        super()._step(batch)
        del persistent.condense


class _InputsAnew(RunnerSession):
    """The runner makes its buffer of token ids anew once its graphs are captured."""

    def capture(self) -> None:
        super().capture()
        inputs_made_anew(self.runner)


class _AnotherToken(RunnerSession):
    """The sampler gives another token in place of a draft that it rejects."""

    def _step(self, batch: Any) -> None:
        runner = self.runner
        sample = type(runner)._sample

        def sampled(*args: Any, **kwargs: Any) -> Any:
            made = sample(runner, *args, **kwargs)
            tokens = made.sampled_token_ids
            rejected = (tokens[:, 1:] == -1) & (tokens[:, :-1] != -1)
            tokens[:, :-1][rejected] ^= 1
            return made

        runner._sample = sampled
        super()._step(batch)
        del runner._sample


class _LaterLogits(RunnerSession):
    """The sampler's rows are those of the tokens behind the ones that it needs."""

    def _step(self, batch: Any) -> None:
        runner = self.runner
        spec = type(runner)._calc_spec_decode_metadata

        def calculated(*args: Any, **kwargs: Any) -> Any:
            made = spec(runner, *args, **kwargs)
            made.logits_indices = made.logits_indices.roll(-1)
            return made

        runner._calc_spec_decode_metadata = calculated
        super()._step(batch)
        del runner._calc_spec_decode_metadata


class _PlanOneStepLate(RunnerSession):
    """The plan of a batch is copied to where the graph reads it after the batch has run."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            before = self.builder.scheduler_metadata.clone()
            made = build(*args, **kwargs)
            late = self.__dict__.pop("_late", None)
            if not self.capturing:
                self._late = self.builder.scheduler_metadata.clone()
                self.builder.scheduler_metadata.copy_(before if late is None else late)
            return made

        return super()._kept(kept)


class _PlanOfNobody(RunnerSession):
    """What a plan says of the blocks of its first row is not copied."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            made = build(*args, **kwargs)
            self.builder.scheduler_metadata[4] = 0
            return made

        return super()._kept(kept)


class _PaddedSlots(RunnerSession):
    """`_get_slot_mappings` leaves slots behind the live tokens as the last batch had them."""

    def capture(self) -> None:
        super().capture()
        padded_slots_stay(self.runner)


def inputs_made_anew(runner: Any) -> None:
    """Token ids in another buffer from now on."""
    runner.input_ids.gpu = runner.input_ids.gpu.clone()


def padded_slots_stay(runner: Any) -> None:
    """From now on slots behind the live tokens stay as the last batch had them."""
    slots = runner.input_batch.block_table[0].slot_mapping.gpu
    mapped = runner._get_slot_mappings
    last = [slots.clone()]

    def kept(*args: Any, num_tokens_unpadded: int, **kwargs: Any) -> Any:
        before = slots.clone()
        made = mapped(*args, num_tokens_unpadded=num_tokens_unpadded, **kwargs)
        slots[num_tokens_unpadded:] = last[0][num_tokens_unpadded:]
        last[0] = before
        return made

    runner._get_slot_mappings = kept


def _session(config: EngineConfig, graphs: GraphEngine, target: Any, kind: Any) -> RunnerSession:
    made: RunnerSession = kind(config, graphs, f"{target.module}.{target.backend}")
    return made


class _PaddedLengths(TritonTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _PaddedRowsKeepLengths)


class _Pages(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _FirstPagesOnly)


class _Tables(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _TablesElsewhere)


class _Inputs(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _InputsAnew)


class _Prompts(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _PromptsStay)


def prompts_stay() -> FlashAttentionTarget:
    return _Prompts("vllm-fa")


def inputs_anew() -> FlashAttentionTarget:
    return _Inputs("vllm-fa")


class _AnotherTokenTarget(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _AnotherToken)


class _LaterLogitsTarget(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _LaterLogits)


def padded_lengths_of_a_verify() -> TritonTarget:
    return _PaddedLengths("vllm-triton-verify", "target_verify")


def another_token_than_the_rejected() -> FlashAttentionTarget:
    return _AnotherTokenTarget("vllm-fa-verify", "target_verify")


class _PlanLateTarget(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _PlanOneStepLate)


class _PlanOfNobodyTarget(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _PlanOfNobody)


def plan_one_step_late() -> FlashAttentionTarget:
    return _PlanLateTarget("vllm-fa-verify", "target_verify")


def plan_of_nobody() -> FlashAttentionTarget:
    return _PlanOfNobodyTarget("vllm-fa-verify", "target_verify")


def logits_of_the_next_tokens() -> FlashAttentionTarget:
    return _LaterLogitsTarget("vllm-fa-verify", "target_verify")


class _PaddedSlotsTarget(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _PaddedSlots)


def padded_slots_of_mixed() -> FlashAttentionTarget:
    return _PaddedSlotsTarget("vllm-fa-mixed", "prefill")


def tables_elsewhere() -> FlashAttentionTarget:
    return _Tables("vllm-fa")


def padded_lengths() -> TritonTarget:
    return _PaddedLengths("vllm-triton")


def first_pages_only() -> FlashAttentionTarget:
    return _Pages("vllm-fa")
