"""Planted bugs of vLLM's runner with a group of states beside one of pages, each of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.vllm.beside_session import (
    BesideAttentionSession,
    DeltaNetBesideAttentionSession,
    MixerBesideAttentionSession,
)
from fuzzgraph.targets.vllm.beside_target import DeltaNetHybridTarget, Mamba2HybridTarget


def _nothing(*_: Any) -> None:
    """A call that is left out."""


class _PagesOfStates(BesideAttentionSession):
    """Attention's metadata is built with the block table of the states."""

    def _spy(self) -> None:
        states, pages = self.runner.input_batch.block_table.block_tables
        pages.get_device_tensor = states.get_device_tensor
        super()._spy()


class StatesOfPages(BesideAttentionSession):
    """The recurrent layer's metadata is built with the block table of the pages."""

    def _spy(self) -> None:
        states, pages = self.runner.input_batch.block_table.block_tables
        states.get_device_tensor = pages.get_device_tensor
        super()._spy()


class PagesNotCommitted(BesideAttentionSession):
    """Of the two groups only the first one's block table is copied to the device."""

    def _spy(self) -> None:
        _, pages = self.runner.input_batch.block_table.block_tables
        pages.commit_block_table = _nothing
        super()._spy()


class _SlotsOfStates(BesideAttentionSession):
    """New KV goes to slots that follow from the block table of the states."""

    def _spy(self) -> None:
        tables = self.runner.input_batch.block_table
        compute = tables.compute_slot_mapping

        def computed(*args: Any, **kwargs: Any) -> None:
            compute(*args, **kwargs)
            states, pages = tables.block_tables
            first = states.block_table.gpu[: len(args[1]) - 1, 0] * self._config.page_size
            pages.slot_mapping.gpu[: len(first)] = first

        tables.compute_slot_mapping = computed
        super()._spy()


def _mixer(planted: type[BesideAttentionSession]) -> Any:
    made: Any = Mamba2HybridTarget("vllm-mamba-hybrid")
    made.session = type(planted.__name__, (planted, MixerBesideAttentionSession), {})
    return made


def _delta_net(planted: type[BesideAttentionSession]) -> Any:
    made: Any = DeltaNetHybridTarget("vllm-gdn-hybrid")
    made.session = type(planted.__name__, (planted, DeltaNetBesideAttentionSession), {})
    return made


def pages_of_states() -> Any:
    return _delta_net(_PagesOfStates)


def states_of_pages() -> Any:
    return _delta_net(StatesOfPages)


def pages_not_committed() -> Any:
    return _delta_net(PagesNotCommitted)


def slots_of_states() -> Any:
    return _delta_net(_SlotsOfStates)


def pages_not_committed_beside_mamba() -> Any:
    return _mixer(PagesNotCommitted)


def states_of_pages_beside_mamba() -> Any:
    return _mixer(StatesOfPages)
