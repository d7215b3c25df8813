"""Prefill graphs of models with images whose engine has one line changed; opened by name."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.runners.full_prefill import FullPrefillSession, FullPrefillTarget
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.full_prefill_mutants import Planted
from tests.targets.sglang.prefill_mutants import changed


def leaves_embeddings() -> FullPrefillTarget:
    """The embeddings of a batch are not put where the graph reads them."""

    def plant(session: FullPrefillSession) -> None:
        engine = session.runner._engine
        change_line(engine, "_fill_input_embeds_slot", "].copy_(ie)", "].clone()")

    return Planted(plant)


def keeps_positions() -> PrefillTarget:
    """The heights and widths of tokens in their images stay those of the batch before."""

    def plant(session: Any, graphs: Any) -> None:
        registry = session.runner._engine.buffer_registry
        positions, fill = registry.get_slot("mrope_positions").buffer, registry.fill_from

        def forget(*args: Any, **kwargs: Any) -> None:
            before = positions.clone()
            fill(*args, **kwargs)
            positions[1:] = before[1:]

        registry.fill_from = forget

    return changed("breakable", plant)


def takes_text_positions() -> PrefillTarget:
    """A breakable graph is captured with the positions of text."""

    def plant(session: Any, graphs: Any) -> None:
        session._model.is_mrope_enabled = False

    return changed("breakable", plant, before_capture=True)
