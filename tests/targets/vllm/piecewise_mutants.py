"""Planted bugs of vLLM's graphs that break at attention, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.vllm.piecewise_session import BreakableSession, PiecewiseSession
from fuzzgraph.targets.vllm.piecewise_target import (
    FlashAttentionBreakableTarget,
    FlashAttentionPiecewiseTarget,
)
from tests.targets.vllm.mutants import inputs_made_anew, padded_lengths_stay, padded_slots_stay


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


class _RowsStay(BreakableSession):
    """`_prepare_inputs` leaves lengths behind the live rows as the last batch had them."""

    def capture(self) -> None:
        super().capture()
        padded_lengths_stay(self.runner)


class _OneEntry(BreakableSession):
    """The wrapper of breakable graphs looks its entry up without the count of tokens."""

    def capture(self) -> None:
        super().capture()
        entries = self._wrapper().entries
        smallest = min(entries, key=lambda key: key.num_tokens)
        entries.update(dict.fromkeys(entries, entries[smallest]))

    def _wrapper(self) -> Any:
        found = self.runner.model
        return found if hasattr(found, "entries") else found.runnable


def _target(session: type[PiecewiseSession]) -> FlashAttentionPiecewiseTarget:
    made = FlashAttentionPiecewiseTarget("vllm-fa-piecewise", "piecewise")
    made.session = session
    return made


def slots_stay() -> FlashAttentionPiecewiseTarget:
    return _target(_SlotsStay)


def _breakable(session: type[BreakableSession]) -> FlashAttentionBreakableTarget:
    made = FlashAttentionBreakableTarget("vllm-fa-breakable")
    made.session = session
    return made


def captured_slots_stay() -> FlashAttentionBreakableTarget:
    return _breakable(_CapturedSlotsStay)


def inputs_anew() -> FlashAttentionPiecewiseTarget:
    return _target(_InputsAnew)


def smaller_graph() -> FlashAttentionPiecewiseTarget:
    return _target(_SmallerGraph)


def last_metadata() -> FlashAttentionPiecewiseTarget:
    return _target(_LastMetadata)


def one_entry() -> FlashAttentionBreakableTarget:
    return _breakable(_OneEntry)


def rows_stay() -> FlashAttentionBreakableTarget:
    return _breakable(_RowsStay)
