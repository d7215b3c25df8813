"""Planted bugs of vLLM's speculator for EAGLE in the V2 runner, each of them the change of one
line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.v2_eagle_session import V2EagleSession
from fuzzgraph.targets.vllm.v2_eagle_target import V2EagleDraftTarget

_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator"


class _Planted(V2EagleSession):
    """With one function of the speculator's module in the place of another."""

    name: str
    """Of the function."""

    @contextlib.contextmanager
    def _engine(self) -> Iterator[None]:
        module = engine_module(_SPECULATOR)
        with super()._engine():
            planted = self._plant(getattr(module, self.name))
            with replaced_names([module], {self.name: planted}):
                yield

    def _plant(self, function: Callable[..., Any]) -> Callable[..., Any]:
        raise NotImplementedError


class _TokensNotMoved(_Planted):
    """`prepare_prefill_inputs` leaves the target's tokens where those behind them belong."""

    name = "prepare_prefill_inputs"

    def _plant(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(last: Any, step: Any, buffers: Any, batch: Any, *rest: Any) -> Any:
            function(last, step, buffers, batch, *rest)
            buffers.input_ids[: batch.num_tokens] = batch.input_ids[: batch.num_tokens]

        return prepare


class _RejectedStay(_Planted):
    """`prepare_prefill_inputs` samples behind the last token, rejected or not."""

    name = "prepare_prefill_inputs"

    def _plant(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(last: Any, step: Any, buffers: Any, batch: Any, *rest: Any) -> Any:
            sampled, rejected, *others = rest
            function(last, step, buffers, batch, sampled, rejected * 0, *others)

        return prepare


class _LengthsWithRejected(_Planted):
    """`prepare_decode_inputs` counts rejected drafts among the keys."""

    name = "prepare_decode_inputs"

    def _plant(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(drafts: Any, lens: Any, rejected: Any, *rest: Any, **more: Any) -> Any:
            function(drafts, lens, rejected * 0, *rest, **more)

        return prepare


class _FirstHiddenStates(_Planted):
    """`update_draft_inputs` copies no hidden states for the next forward."""

    name = "update_draft_inputs"

    def _plant(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def update(
            tokens: Any,
            step: Any,
            hidden: Any,
            drafts: Any,
            following: Any,
            *rest: Any,
            **more: Any,
        ) -> Any:
            before = following.clone()
            function(tokens, step, hidden, drafts, following, *rest, **more)
            following.copy_(before)

        return update


class _LengthsStay(_Planted):
    """`update_draft_inputs` leaves the lengths as they were."""

    name = "update_draft_inputs"

    def _plant(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def update(*args: Any, **more: Any) -> Any:
            lens = args[5].seq_lens
            before = lens.clone()
            function(*args, **more)
            lens.copy_(before)

        return update


class _InputsAnew(V2EagleSession):
    """The speculator makes its buffer of token ids anew once its graphs are captured."""

    def capture(self) -> None:
        super().capture()
        buffers = self.runner.speculator.input_buffers
        buffers.input_ids = buffers.input_ids.clone()


class _SmallerGraph(V2EagleSession):
    """The manager of the later forwards gives a row too many a smaller graph."""

    def _spy(self) -> None:
        manager = self.runner.speculator.decode_cudagraph_manager
        dispatch = manager.dispatch

        def dispatched(rows: int, tokens: int, *args: Any, **kwargs: Any) -> Any:
            chosen = dispatch(rows, tokens, *args, **kwargs)
            if chosen in manager.graphs and tokens - 1 in self._config.capture_bs:
                return dispatch(rows - 1, tokens - 1, *args, **kwargs)
            return chosen

        manager.dispatch = dispatched
        super()._spy()


class _NoGraph(V2EagleSession):
    """The manager of the first forward is asked for the padded count of tokens (0.20.2)."""

    def _spy(self) -> None:
        manager = self.runner.speculator.prefill_cudagraph_manager
        dispatch = manager.dispatch

        def dispatched(rows: int, tokens: int, each: int | None, *rest: Any, **more: Any) -> Any:
            known = each if rows * (each or 0) == tokens else None
            return dispatch(rows, tokens, known, *rest, **more)

        manager.dispatch = dispatched
        super()._spy()


class _IdleSlots(V2EagleSession):
    """A dummy batch drafts for the requests of the first rows (PR 56734)."""

    def _spy(self) -> None:
        super()._spy()
        speculator = self.runner.speculator
        copy = speculator._copy_request_inputs
        speculator._copy_request_inputs = lambda *args, dummy_run=False: copy(*args)


class _PaddedSlots(V2EagleSession):
    """`compute_slot_mappings` leaves what is behind the live tokens."""

    def _spy(self) -> None:
        super()._spy()
        tables = self.runner.block_tables
        compute = tables.compute_slot_mappings

        def computed(requests: Any, offsets: Any, *args: Any, **kwargs: Any) -> Any:
            before = tables.slot_mappings.clone()
            made = compute(requests, offsets, *args, **kwargs)
            kept = tables.slot_mappings == -1
            tables.slot_mappings.copy_(tables.slot_mappings.where(~kept, before))
            return made

        tables.compute_slot_mappings = computed


class _SlotsOfTheFirst(V2EagleSession):
    """`_generate_fused_drafts` computes slots once, and not for each forward."""

    def _spy(self) -> None:
        super()._spy()
        speculator = self.runner.speculator
        tables = self.runner.block_tables
        compute, generate = tables.compute_slot_mappings, speculator._generate_fused_drafts

        def generated(*args: Any, **kwargs: Any) -> Any:
            asked: list[int] = []

            def once(*given: Any, **more: Any) -> Any:
                asked.append(1)
                return compute(*given, **more) if len(asked) == 1 else tables.slot_mappings

            with replaced_names([tables], {"compute_slot_mappings": once}):
                return generate(*args, **kwargs)

        speculator._generate_fused_drafts = generated


class _NextRowsDrafts(V2EagleSession):
    """`sample_tokens` keeps the drafts of each row for the one behind it."""

    def _spy(self) -> None:
        super()._spy()
        speculator = self.runner.speculator
        propose = speculator.propose
        speculator.propose = lambda *args, **kwargs: propose(*args, **kwargs).roll(1, 0)


class _StepStays(V2EagleSession):
    """`_generate_fused_drafts` leaves the number of the forward as it was."""

    def _spy(self) -> None:
        super()._spy()
        self.runner.speculator.current_draft_step.fill_ = lambda step: None


def _target(session: type[V2EagleSession]) -> V2EagleDraftTarget:
    made = V2EagleDraftTarget("vllm-v2-eagle-draft")
    made.session = session
    return made


def tokens_not_moved() -> V2EagleDraftTarget:
    return _target(_TokensNotMoved)


def rejected_stay() -> V2EagleDraftTarget:
    return _target(_RejectedStay)


def lengths_with_rejected() -> V2EagleDraftTarget:
    return _target(_LengthsWithRejected)


def first_hidden_states() -> V2EagleDraftTarget:
    return _target(_FirstHiddenStates)


def lengths_stay() -> V2EagleDraftTarget:
    return _target(_LengthsStay)


def inputs_anew() -> V2EagleDraftTarget:
    return _target(_InputsAnew)


def smaller_graph() -> V2EagleDraftTarget:
    return _target(_SmallerGraph)


def no_graph() -> V2EagleDraftTarget:
    return _target(_NoGraph)


def idle_slots() -> V2EagleDraftTarget:
    return _target(_IdleSlots)


def padded_slots() -> V2EagleDraftTarget:
    return _target(_PaddedSlots)


def slots_of_the_first() -> V2EagleDraftTarget:
    return _target(_SlotsOfTheFirst)


def next_rows_drafts() -> V2EagleDraftTarget:
    return _target(_NextRowsDrafts)


def step_stays() -> V2EagleDraftTarget:
    return _target(_StepStays)
