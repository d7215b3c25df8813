"""Each oracle catches a fault that no other sees, spares the healthy engine, and can fail."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.faults import FAULTS, healthy_twin, open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.oracles import ORACLES
from fuzzgraph.ports import Target
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.metadata.builder import MetadataBuilder
from fuzzgraph.targets.builtin.registry import BufferRegistry
from fuzzgraph.targets.builtin.runners.base import GraphRunner


@dataclass(frozen=True)
class Exclusive:
    """A fault and a least case on which one oracle alone speaks up."""

    oracle: str
    fault: str
    buffer: str
    """Buffer or output that the finding names."""
    case: Case
    engine: Components | None = None
    """The faulty engine where the fault is none of the catalogue."""

    def opened(self) -> Target:
        return open_fault(self.fault) if self.engine is None else BuiltinTarget(self.engine)

    def healthy(self) -> Target:
        return healthy_twin(FAULTS[self.fault]) if self.fault in FAULTS else BuiltinTarget()


class FrozenShort(GraphRunner):
    """Its graphs serve rows of half the context, and eager steps those of the whole."""

    def make_builder(self, registry: BufferRegistry) -> MetadataBuilder:
        builder = super().make_builder(registry)
        if "batches" not in vars(self):  # those of the graphs are allocated first
            longest = builder.max_kv_len() // 2
            vars(builder)["max_kv_len"] = lambda: longest
        return builder


def case_of(*steps: ReplayStep, **config: object) -> Case:
    return Case(schema_version=1, config=EngineConfig(**config), steps=steps)  # type: ignore[arg-type]


def decode(*lengths: int, **step: object) -> ReplayStep:
    """One decode step, a row per length."""
    rows = tuple(BatchRow(request=i, seq_len=length) for i, length in enumerate(lengths))
    return ReplayStep(rows=rows, **step)  # type: ignore[arg-type]


EXCLUSIVES: tuple[Exclusive, ...] = (
    Exclusive(
        "survival",
        "sglang-pr-39899-idle-rank-last-token",
        "",
        case_of(ReplayStep(mode="idle")),
    ),
    Exclusive(
        "footprint",
        "vllm-issue-13418-padded-tokens-written",
        "kv_pool.k",
        case_of(decode(1, 1), decode(1), capture_bs=(2,), page_size=4),
    ),
    Exclusive(
        "contract",
        "sglang-pr-22404-capture-token-count",
        "num_token_non_padded",
        case_of(decode(3, 5), capture_bs=(2,), attn_tp_size=2),
    ),
    Exclusive(
        "handover",
        "a frozen length that later rows outgrow",
        "paged_attention.max_kv_len",
        case_of(decode(2), max_context_len=16),
        replace(Components(), decode=FrozenShort),
    ),
    Exclusive(
        "noninterference",
        "vllm-pr-36939-masked-tile-past-the-end",
        "attention",
        case_of(decode(2)),
    ),
    Exclusive(
        "history",
        "vllm-pr-25490-plan-remembers-last-batch",
        "kv_indices",
        case_of(decode(4), decode(5)),
    ),
    Exclusive(
        "overlap",
        "vllm-pr-24527-pinned-inputs-reused-at-once",
        "seq_lens",
        case_of(decode(4), decode(5)),
    ),
    Exclusive(
        "eager",
        "vllm-pr-28702-replay-splits-otherwise",
        "attention",
        case_of(decode(7)),
    ),
    Exclusive(
        "reference",
        "sglang-pr-32087-window-off-by-one",
        "attention",
        case_of(decode(6), sliding_window=3),
    ),
)


by_oracle = pytest.mark.parametrize("known", EXCLUSIVES, ids=lambda known: known.oracle)


def findings(target: Target, known: Exclusive, *, without: str = "") -> tuple[Finding, ...]:
    oracles = [oracle for oracle in ORACLES if oracle.name != without]
    execution = Execution(target, Setup(overlap=known.oracle == "overlap"), oracles=oracles)
    found = execution.run_case(known.case).findings
    execution.close()
    return found


def test_every_oracle_has_a_fault_of_its_own() -> None:
    assert {known.oracle for known in EXCLUSIVES} == {oracle.name for oracle in ORACLES}


@by_oracle
def test_the_oracle_alone_catches_its_fault_and_names_the_buffer(known: Exclusive) -> None:
    found = findings(known.opened(), known)
    assert {finding.oracle for finding in found} == {known.oracle}
    assert found[0].buffer == known.buffer


@by_oracle
def test_the_oracle_is_silent_on_the_healthy_twin(known: Exclusive) -> None:
    assert findings(known.healthy(), known) == ()


@by_oracle
def test_without_the_oracle_its_fault_goes_unseen(known: Exclusive) -> None:
    assert findings(known.opened(), known, without=known.oracle) == ()
