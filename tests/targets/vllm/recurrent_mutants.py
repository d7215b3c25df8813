"""Planted bugs of vLLM's builder for Mamba, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.vllm.recurrent_session import Mamba1Session, RecurrentSession
from fuzzgraph.targets.vllm.recurrent_target import Mamba1Target, Mamba2Target


class PaddedRowsKeepSlots(RecurrentSession):
    """The builder leaves the slots behind the live rows as the last batch had them."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            slots = self.builder.state_indices_tensor_d
            before = slots.clone()
            built = build(*args, **kwargs)
            live = self.runner.input_batch.num_reqs
            if live:
                slots[live:] = before[live:]
            return built

        return super()._kept(kept)


class _SlotsElsewhere(RecurrentSession):
    """The builder hands over slots in a tensor of its own, made anew for each batch."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            slots = self.builder.state_indices_tensor_d
            before = slots.clone()
            built = build(*args, **kwargs)
            if not self.capturing:
                built.state_indices_tensor_d = built.state_indices_tensor_d.clone()
                slots.copy_(before)
            return built

        return super()._kept(kept)


class _SlotsOneLate(RecurrentSession):
    """Slots are copied to where the graph reads them after the batch has run."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            slots = self.builder.state_indices_tensor_d
            before = slots.clone()
            built = build(*args, **kwargs)
            if not self.capturing:
                slots.copy_(before)
            return built

        return super()._kept(kept)


def _target(session: type[RecurrentSession]) -> Mamba2Target:
    made = Mamba2Target("vllm-mamba")
    made.session = session  # type: ignore[assignment]
    return made


def _mamba1(planted: type[RecurrentSession]) -> Any:
    made: Any = Mamba1Target("vllm-mamba1")
    made.session = type(planted.__name__, (planted, Mamba1Session), {})
    return made


def stale_states() -> Mamba2Target:
    return _target(PaddedRowsKeepSlots)


def stale_states_of_mamba1() -> Any:
    return _mamba1(PaddedRowsKeepSlots)


def states_one_late_of_mamba1() -> Any:
    return _mamba1(_SlotsOneLate)


def states_elsewhere() -> Mamba2Target:
    return _target(_SlotsElsewhere)
