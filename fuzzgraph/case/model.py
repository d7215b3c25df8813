"""A case: an engine config and the steps replayed on it, each with its rows. Without tensors."""

from __future__ import annotations

from typing import Annotated, Literal, get_args, get_type_hints

from fuzzgraph.case.dimension import Dimension
from fuzzgraph.case.engine_config import DIMENSIONS, EngineConfig, Mode
from fuzzgraph.case.record import Record, one_empty_tuple

SCHEMA_VERSION = 1

Via = Literal["graph", "eager"]


class BatchRow(Record, frozen=True, kw_only=True):
    """One live request in a step."""

    request: int
    """Logical name of the request, for the life of the case."""
    seq_len: int = 1
    """KV tokens the step attends over, those computed in this step included."""
    new_tokens: int = 1
    """Tokens computed in this step: 1 in decode, the accept length in draft_extend."""
    encoder_len: int = 0
    adapter: int = 0
    """LoRA adapter of the request, for its life; 0: none."""


class ReplayStep(Record, frozen=True, kw_only=True):
    """One forward of the engine. A request not seen before is added, one seen again continues."""

    mode: Mode = "decode"
    rows: tuple[BatchRow, ...] = ()
    finish: tuple[int, ...] = ()
    """Requests that left before this step; their row, pages and state are free again."""
    via: Via = "graph"
    mrope: Annotated[bool, Dimension(carried_by=("mrope", "mrope_positions"))] = False
    """Whether the optional multi-modal position input is present."""
    other_ranks: tuple[int, ...] = ()
    """Live rows of each of the other data-parallel ranks, or tokens where `modes` is prefill alone
    or these ranks prefill, in their order; (): as many as here."""
    others_prefill: bool = False
    """Whether the other ranks that have something compute prompts while this one decodes or is
    idle: no rank replays a graph of decodes then."""

    def __post_init__(self) -> None:
        one_empty_tuple(self, "rows", "finish", "other_ranks")


class Case(Record, frozen=True, kw_only=True):
    """An engine config and the steps replayed on it."""

    schema_version: Literal[1]
    config: EngineConfig
    steps: tuple[ReplayStep, ...]
    seed: int = 0
    page_order: Literal["ascending", "descending", "shuffled", "fragmented"] = "ascending"
    shared_prefix_pages: int = 0
    """Leading pages that requests share, as prefix caching makes them."""


def driven_inputs(case: Case) -> dict[str, tuple[str, ...]]:
    """Dimension that a case drives -> names of the input that carries it, where one does."""
    found = {
        name: row.spec.carried_by
        for name, row in DIMENSIONS.items()
        if row.spec.carried_by and getattr(case.config, name) != row.default
    }
    for name, hint in get_type_hints(ReplayStep, include_extras=True).items():
        spec = next((part for part in get_args(hint)[1:] if isinstance(part, Dimension)), None)
        if spec is not None and any(getattr(step, name) for step in case.steps):
            found[name] = spec.carried_by
    return found
