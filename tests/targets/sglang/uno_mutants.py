"""Planted bugs of Uno's runner, each of them the change of one line of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.uno import UnoSession, UnoTarget

_Plant = Callable[[Any, Any], None]
"""Changes the engine's decode runner and its LoRA backend, right after their constructors."""


class _Planted(UnoTarget):
    def __init__(self, plant: _Plant) -> None:
        super().__init__("sglang-uno")
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> UnoSession:
        plant = self._plant

        class Session(UnoSession):
            def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
                driver = super()._open_runner(graphs)
                plant(driver._engine, self._manager.lora_backend)
                return driver

        return Session(config, graphs, self._kernels)


def _the_graph_that_was_prepared_first(engine: Any, backend: Any) -> None:
    """Drafts and verifies replay one graph, that of verifies."""
    engine._resolve_lora_variant = lambda forward_batch: "nolora"


def _verifies_draft(engine: Any, backend: Any) -> None:
    """Drafts and verifies replay one graph, that of drafts."""
    engine._resolve_lora_variant = lambda forward_batch: "lora"


def _the_first_token_has_the_adapter_too(engine: Any, backend: Any) -> None:
    """The hidden states of each row's first token are not zeroed between the two products."""

    def changed(lora_input: Any, active_a: Any, route: Any, *, output: Any = None) -> Any:
        import torch

        return torch.mm(lora_input, active_a.t(), out=output)

    backend._compute_lora_a = changed


def _routing_of_the_largest_graph(engine: Any, backend: Any) -> None:
    """Every graph is captured with the routing of the largest, which was prepared first."""
    state, activate = engine._lora_state, engine._lora_state.activate_draft
    state.activate_draft = lambda size: activate(max(state._draft_batch_infos))


def drafts_without_the_adapter() -> _Planted:
    return _Planted(_the_graph_that_was_prepared_first)


def verifies_with_the_adapter() -> _Planted:
    return _Planted(_verifies_draft)


def the_first_token_has_the_adapter_too() -> _Planted:
    return _Planted(_the_first_token_has_the_adapter_too)


def routing_of_the_largest_graph() -> _Planted:
    return _Planted(_routing_of_the_largest_graph)
