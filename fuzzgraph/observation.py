"""Records of what was seen when a step ran: outputs, metadata, memory. Oracles judge them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from fuzzgraph.accesses import Access, Misuse, Race
from fuzzgraph.case import EngineConfig
from fuzzgraph.fields import Axis, Field, PaddingRule, Selects
from fuzzgraph.handover import Excuse, Handover
from fuzzgraph.world import Batch

__all__ = [
    "AddressChange",
    "Allocation",
    "Axis",
    "PaddingRule",
    "Engagement",
    "Field",
    "ForeignWrite",
    "FreedUse",
    "KeptOutput",
    "Observation",
    "RunKind",
    "Selects",
    "StepRecord",
    "RunFailure",
    "ZoneHit",
]

RunKind = Literal["replay", "eager", "screen", "other_world", "left_over", "twin", "again", "ahead"]
"""replay: the step under test. eager: the same engine without a graph, same world and history.
screen: replay in world B on the twin (restored to just after capture), one run that settles
reads and history at once where it agrees. other_world, left_over, twin: run when the screen
differs. other_world changes foreign memory alone; left_over what the previous replay left in
buffers that the engine promises to rewrite; twin takes away the past as a whole. again: the replay
repeated in the same world, to tell nondeterminism. ahead: replay with the host a step ahead of the
device, kept where a copy from pinned memory read something else then, or the host before a copy."""


class BatchPart(NamedTuple):
    """One of several parts of a batch that a model computes by themselves, one after the other."""

    first_token: int
    tokens: int
    padded_tokens: int
    """Tokens that its kernels are given."""


@dataclass(slots=True)
class Observation:
    """One run of one step. Tensors are copies, padded rows included; sessions show them where they
    lie, and oracles find them on the host."""

    raw_bs: int
    padded_bs: int
    num_tokens: int
    padded_tokens: int
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """Name -> [padded_tokens or padded_bs, ...]: exactly so many rows, in the model's dtype."""
    metadata: dict[str, torch.Tensor] = field(default_factory=dict)
    """Field name -> used part: [padded_bs], [padded_bs + 1], the indices below the last offset."""
    told: dict[str, list[int]] = field(default_factory=dict)
    """Field name -> what its live entries must hold, in the batch's rows, where that follows from
    what the target told the engine in a scheduler's place, and not from the batch alone. Fields
    declare it by `repeats=fields.TOLD`."""
    plan: dict[str, object] = field(default_factory=dict)
    """Frozen scalars and other plain values that select the kernel plan (max length, splits)."""
    types: dict[str, str] = field(default_factory=dict)
    """Field -> type name of each metadata object that the forward dereferences."""
    shown_tokens: int | None = None
    """Token rows of the outputs, if the engine cuts off rows that it has padded. None if every
    padded row is shown."""
    order: Sequence[int] | None = None
    """Engine's row of each row of the batch, where the engine has an order of its own, as a
    persistent batch has; None where it is the batch's. Everything is then shown in the engine's
    order, and the harness puts it into the batch's."""
    row_width: int = 0
    """Tokens that each row is handed over with, those of the batch first, where all rows have as
    many; 0 where the batch's tokens alone are handed over."""
    dummy_rows: int = 0
    """Padded rows, the first ones, that the engine runs like live ones though no request is behind
    them, as an idle rank does."""
    declined: str = ""
    """The engine's documented rule by which this batch takes no graph; '' if it must take one."""
    ranks_apart: bool = False
    """Whether nothing in the step waits for other data-parallel ranks, so that the engine sizes the
    graph by this rank's rows alone."""
    agreed_tokens: int = 0
    """Tokens that data-parallel ranks have agreed to replay in one graph, captured by tokens, at
    least; 0 where the largest rank's rows say which graph it is."""
    compiled_forwards: int | None = None
    """How many forwards, compiled ahead for a size as graphs are captured, the step ran, where the
    engine has such in their place and no graph engine knows of them; None where it has graphs."""
    parts: tuple[BatchPart, ...] = ()
    """The parts in which the model computed the batch; none where it computed the whole at once.
    Two runs may cut a batch in different places."""
    handovers: tuple[Handover, ...] = ()
    """What the runner handed its backend and the backend its kernels, as it was."""
    handed_at_capture: tuple[Handover, ...] = ()
    """The same of the capture of the graph that was replayed; without values."""


@dataclass(frozen=True, slots=True)
class ZoneHit:
    """A red zone that changed."""

    region: str
    side: Literal["before", "after"]
    offset: int
    """Elements from the end of the payload (after) or its start (before, negative)."""
    elements: int
    """Changed elements of the region's dtype."""
    reach: int
    """Farthest changed element, counted like `offset`."""
    written: list[Any]
    """The first few values found there."""
    allocated_at: str
    """Source line that allocated the region."""
    payload: int
    """Elements of the payload."""
    stage: str


@dataclass(frozen=True, slots=True)
class ForeignWrite:
    """Memory that changed and must not, or that the step wrote wrong values to."""

    region: str
    what: Literal["slot", "row", "state"]
    indices: list[int]
    own: bool = False
    """True where the batch owns the place and what was written there is wrong."""


@dataclass(frozen=True, slots=True)
class FreedUse:
    """Memory that a replayed graph uses and that the engine has let go of."""

    region: str
    graph: str
    kind: Literal["read", "write"]
    by: str
    """The operation or kernel that uses it first."""
    source: str
    """The line that issued that at the capture."""
    allocated_at: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddressChange:
    """A captured tensor that no longer lies where the graph reads it."""

    name: str
    captured: int
    now: int


@dataclass(frozen=True, slots=True)
class Engagement:
    """What the replays of one graph showed; true if the graph ran every time."""

    replays: int
    python_calls: int
    """Times the captured function was entered during a replay; a graph never does."""
    unwritten: tuple[str, ...]
    """Outputs that still hold the poison written before the last replay."""

    def __bool__(self) -> bool:
        return not self.python_calls and not self.unwritten


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """An output of an earlier step, that the target promises to keep, changed later."""

    name: str
    step: int


@dataclass(frozen=True, slots=True)
class RunFailure:
    """A run that ended without an observation."""

    run: RunKind
    stage: str
    symptom: str
    error: str
    """Exception type and message, one line."""
    where: str
    """Innermost source line outside FuzzGraph's harness."""
    too_small: str = ""
    """The buffer that an index error is about; '' where that is unknown."""
    allocated_at: str = ""
    """Where that buffer was allocated; '' where that is unknown."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """An engine's buffer: what the engine calls it, and the line that allocated it."""

    buffer: str
    allocated_at: str


def _unknown(name: str) -> Allocation | None:
    return None


@dataclass(slots=True)
class StepRecord:
    """Everything seen in one step; the oracles judge it."""

    index: int
    target: str
    config: EngineConfig
    batch: Batch
    fields: tuple[Field, ...]
    runs: dict[RunKind, Observation] = field(default_factory=dict)
    expected: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Output name -> float64 truth for live rows or tokens, from the logical batch alone."""
    yardstick: Callable[[], Mapping[str, torch.Tensor]] = dict
    """Computes output name -> the same by plain torch in the engine's dtype; called when needed."""
    value_bound: float = 0.0
    """max |V| that entered the step, for the tolerance's absolute term."""
    weight_errors: Callable[[], Mapping[str, torch.Tensor]] = dict
    """Computes output name -> how far kernels that round softmax's weights to FP8 may take each
    element from the truth; empty where none does. Called when needed."""
    second_opinion: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The Triton eager reference, where it was run."""
    promised_outputs: tuple[str, ...] = ()
    zone_hits: list[ZoneHit] = field(default_factory=list)
    foreign_writes: list[ForeignWrite] = field(default_factory=list)
    eager_state_writes: list[ForeignWrite] = field(default_factory=list)
    """The same of recurrent states behind the eager run, where the replay leaves them right."""
    accesses: list[Access] = field(default_factory=list)
    """Accesses of kernels outside of their memory, where kernels are checked."""
    races: list[Race] = field(default_factory=list)
    """Places that several programs of one launch touched, at least one of them writing."""
    misuses: list[Misuse] = field(default_factory=list)
    """Arguments whose content breaks a rule of the kernel that got them."""
    eager_misuses: list[Misuse] = field(default_factory=list)
    """The same of the eager run."""
    freed_uses: list[FreedUse] = field(default_factory=list)
    """Of the graphs that the step replayed, where they are recorded."""
    excuses: tuple[Excuse, ...] = ()
    """Rules of handing over that the target excuses names from."""
    address_changes: list[AddressChange] = field(default_factory=list)
    dtype_changes: list[tuple[str, str, str]] = field(default_factory=list)
    """(buffer, dtype that the graph captured, dtype that the engine writes now)."""
    kept_changes: list[KeptOutput] = field(default_factory=list)
    failures: list[RunFailure] = field(default_factory=list)
    blamed: Mapping[tuple[RunKind, str], str] = field(default_factory=dict)
    """(run, output or field) -> the region on whose content it depends, found by bisection."""
    at_capture: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Metadata values that the graph of this size saw at capture, for the capture/replay check."""
    owed_at_capture: tuple[str, ...] = ()
    """Names of which the session says, or showed in an earlier step, that a capture sees them."""
    allocation: Callable[[str], Allocation | None] = _unknown
    """Field -> the engine's buffer that holds it; None where that is unknown. Asked for findings
    only, while the session is open."""
    rewritten: tuple[str, ...] = ()
    """Lines of the engine that give a copy whose pinned source it rewrote before the copy need have
    run (run `ahead`)."""
    unordered: tuple[str, ...] = ()
    """Lines of the engine that give work to a side stream, where another order that waits allow
    gives other values (run `ahead`)."""
    unarrived: tuple[str, ...] = ()
    """Lines of the engine that give a copy to the host, where the host read before that need have
    arrived (run `ahead`)."""
    nan_world: bool = False
    nondeterministic: bool = False
    """Whether the engine differed from itself in the same world (run `again`)."""
    engagements: tuple[Engagement, ...] | None = None
    """One for each graph that the step replayed; None if it need not replay any."""

    def plain_error(self, output: str) -> float:
        """Largest error of plain torch in an output, in the engine's dtype.

        0.0 for an output without a yardstick, whose sums are exact in every dtype.
        """
        plain = self.yardstick().get(output)
        if plain is None or not plain.numel():
            return 0.0
        return float((plain.double() - self.expected[output].to(plain.device)).abs().max())
