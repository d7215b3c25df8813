"""Planted bugs of vLLM's graphs that break at attention, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.vllm.piecewise_session import (
    BreakableSession,
    FullAndPiecewiseSession,
    PiecewiseSession,
)
from fuzzgraph.targets.vllm.piecewise_target import (
    FlashAttentionBreakableTarget,
    FlashAttentionPiecewiseTarget,
)
from fuzzgraph.world import Batch
from tests.targets.vllm.mutants import inputs_made_anew, padded_slots_stay


class _SlotsStay(PiecewiseSession):
    """`_get_slot_mappings` leaves slots behind the live tokens as the last batch had them."""

    def capture(self) -> None:
        super().capture()
        padded_slots_stay(self.runner)


class _CapturedSlotsStay(BreakableSession):
    """The same where the graph stores KV."""

    def capture(self) -> None:
        super().capture()
        padded_slots_stay(self.runner)


class _InputsAnew(PiecewiseSession):
    """The runner makes its buffer of token ids anew once its graphs are captured."""

    def capture(self) -> None:
        super().capture()
        inputs_made_anew(self.runner)


class _SmallerGraph(PiecewiseSession):
    """The dispatcher's table gives a count just above a captured size that smaller size."""

    def capture(self) -> None:
        super().capture()
        sizes = self._config.capture_tokens
        table = self.runner.cudagraph_dispatcher._bs_to_padded_graph_size
        for size in sizes[:-1]:
            table[size + 1] = size


class _LastMetadata(PiecewiseSession):
    """Attention between the pieces gets what was built for the step before."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        last: list[Any] = []

        def built(*args: Any, **kwargs: Any) -> Any:
            last.append(build(*args, **kwargs))
            return last[-2:][0]

        return super()._kept(built)


class _PaddedMetadata(FullAndPiecewiseSession):
    """`execute_model` pads what attention between pieces gets, as it does for full graphs."""

    def _step(self, batch: Batch) -> None:
        runner = self.runner
        build = type(runner)._build_attention_metadata

        def built(*args: Any, **kwargs: Any) -> Any:
            if self._in_pieces():
                kwargs["num_tokens"] = self._dispatched[1].num_tokens
            return build(runner, *args, **kwargs)

        runner._build_attention_metadata = built
        super()._step(batch)
        del runner._build_attention_metadata


def _target(session: type[PiecewiseSession]) -> FlashAttentionPiecewiseTarget:
    made = FlashAttentionPiecewiseTarget("vllm-fa-piecewise", "piecewise")
    made.session = session
    return made


def slots_stay() -> FlashAttentionPiecewiseTarget:
    return _target(_SlotsStay)


def captured_slots_stay() -> FlashAttentionBreakableTarget:
    made = FlashAttentionBreakableTarget("vllm-fa-breakable")
    made.session = _CapturedSlotsStay
    return made


def inputs_anew() -> FlashAttentionPiecewiseTarget:
    return _target(_InputsAnew)


def smaller_graph() -> FlashAttentionPiecewiseTarget:
    return _target(_SmallerGraph)


def last_metadata() -> FlashAttentionPiecewiseTarget:
    return _target(_LastMetadata)


def padded_metadata() -> FlashAttentionPiecewiseTarget:
    return _target(_PaddedMetadata)
