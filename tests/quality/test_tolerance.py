"""The healthy engine is silent where plain torch happens to round better than it does."""

from __future__ import annotations

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.targets.builtin import BuiltinTarget


def test_a_lucky_yardstick_makes_no_finding() -> None:
    case = Case(
        schema_version=1,
        config=EngineConfig(capture_bs=(1,), kv_pool_pages=128),
        steps=(ReplayStep(rows=(BatchRow(request=6, seq_len=5),)),),
        seed=183,
    )
    assert not Execution(BuiltinTarget()).run_case(case).findings
