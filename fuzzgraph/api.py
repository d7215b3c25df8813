"""The calls for tests of one's own: run a case, check it, draw cases.

For the whole service (confirm, shrink, repro) run a campaign: `fuzzgraph run`, `pytest --fuzz`, or
the fixture `fuzz_engine` of the pytest plugin.
"""

from __future__ import annotations

import atexit
from collections.abc import Hashable
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from fuzzgraph.case import Case, EngineConfig, ReplayStep, digest
from fuzzgraph.errors import UsageError
from fuzzgraph.open_target import (
    Opened,
    open_setup,
    open_target_object,
    strategy_of,
    supports_of,
)
from fuzzgraph.reporting import finding_text
from fuzzgraph.run.events import ReportedFinding, Setup, finding_id
from fuzzgraph.run_options import checked_setup
from fuzzgraph.text.case_text import case_table

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzzgraph.ports import Target
    from fuzzgraph.run.environment import Environment
    from fuzzgraph.run.runner import Runner, VerdictLike
    from fuzzgraph.strategies.space import Space
    from fuzzgraph.target_report import TargetReport
    from fuzzgraph.world import Batch


class FindingError(AssertionError):
    """A case breaks the law; the text is the finding."""

    def __init__(self, reported: ReportedFinding, environment: Environment | None = None) -> None:
        super().__init__(finding_text(reported, environment))
        self.reported = reported


@lru_cache(maxsize=4)
def _opened(setup: Setup) -> Opened:
    opened = open_setup(setup)
    atexit.register(opened.close)
    return opened


@lru_cache(maxsize=4)
def _opened_object(target: Hashable, setup: Setup) -> Opened:
    return open_target_object(cast("Target", target), setup)


def _open(target: str | Target, options: dict[str, Any]) -> Opened:
    name = target if isinstance(target, str) else target.name
    known = [field for field in Setup.__struct_fields__ if field != "target"]
    for option in options:
        if option not in known:
            raise UsageError(
                f"option {option!r} is unknown for target {name!r}. Use one of: {', '.join(known)}."
            )
    setup = checked_setup(name, **options)
    return _opened(setup) if isinstance(target, str) else _opened_object(cast(Any, target), setup)


def run_case(case: Case, target: str | Target = "builtin", **options: Any) -> VerdictLike:
    """What the oracles say of a case; `findings` is empty where the law holds.

    The engine is opened once for each target and options, and serves every case after that.

    Args:
        case: what to run.
        target: name of a target, `module:factory`, or a target of your own as an object.
        **options: what the case is run on, by the names of `run.spec.Setup`: release, fault,
            device ("cpu" or "cuda", which is HIP too), graphs ("recorder" or "device"), ...

    Raises:
        UsageError: an unknown name, a case that contradicts itself, a missing engine or device.
    """
    if not isinstance(case, Case):
        raise UsageError(
            f"case={case!r:.60} is not a Case. Read one from a file with fuzzgraph.load_case."
        )
    return _open(target, options).runner.run_case(case)


def check(case: Case, target: str | Target = "builtin", **options: Any) -> None:
    """Pass if the case keeps the law: the one call of a regression test.

    Args:
        case, target, **options: as for `run_case`, e.g. release="0.5.12".

    Raises:
        FindingError: it does not; the text names clause, buffer and step.
        UsageError: as for `run_case`, or the target cannot express the case.
    """
    __tracebackhide__ = True
    verdict = run_case(case, target, **options)
    name = target if isinstance(target, str) else target.name
    if verdict.skipped:
        raise UsageError(
            f"case {digest(case)}: target {name!r} cannot run it: {verdict.skipped}. "
            "Draw cases with fuzzgraph.cases(target), or change the case."
        )
    if verdict.findings:
        opened = _open(target, options)
        raise FindingError(_reported(case, verdict, opened.runner), opened.environment)


def _reported(case: Case, verdict: VerdictLike, runner: Runner) -> ReportedFinding:
    from fuzzgraph.campaign.effect import with_effects

    first, *others = with_effects(case, verdict.findings, runner)
    return ReportedFinding(
        id=finding_id(first.key),
        finding=first,
        case=case,
        digest=digest(case),
        also=tuple(others),
    )


def cases(
    target: str | Target = "builtin", profile: str = "ci", **bounds: Any
) -> SearchStrategy[Case]:
    """A Hypothesis strategy of cases that the target can express; docs/strategies.md shows it.

    Args:
        target: name of a target, or one of your own.
        profile: "ci", "default", "nightly" or "device": sizes of what is drawn.
        **bounds: what to hold to one value, or to one of several: `raw_bs` (live requests of a
            batch), `modes`, or a field of `EngineConfig` such as `page_size`. Options of `run_case`
            (release, ...) say which engine is asked what it supports.

    Raises:
        UsageError: an unknown target, profile, bound or value, or bounds that contradict each
            other.
    """
    from fuzzgraph.strategies.public import drawn_cases

    return drawn_cases(_space(target, profile, bounds), case_table)


def configs(
    target: str | Target = "builtin", profile: str = "ci", **bounds: Any
) -> SearchStrategy[EngineConfig]:
    """A Hypothesis strategy of configs that the target opens; arguments as for `cases`."""
    from fuzzgraph.strategies.public import drawn_configs

    return drawn_configs(_space(target, profile, bounds))


def histories(
    config: EngineConfig, target: str | Target = "builtin", profile: str = "ci", **bounds: Any
) -> SearchStrategy[tuple[ReplayStep, ...]]:
    """A Hypothesis strategy of the steps of a case on this config.

    Args:
        config: what they are valid on.
        target, profile: as for `cases`.
        **bounds: `raw_bs` and `modes`.
    """
    from fuzzgraph.strategies.public import drawn_histories

    return drawn_histories(_space(target, profile, bounds, config), config, case_table)


def batches(
    config: EngineConfig, target: str | Target = "builtin", profile: str = "ci", **bounds: Any
) -> SearchStrategy[Batch]:
    """A Hypothesis strategy of single batches on this config: lengths, pages and slots as arrays.

    Arguments as for `histories`. The case that a batch comes from is noted.
    """
    from fuzzgraph.strategies.public import drawn_batches

    return drawn_batches(_space(target, profile, bounds, config), config, case_table)


def _space(
    target: str | Target, profile: str, bounds: dict[str, Any], config: EngineConfig | None = None
) -> Space:
    from fuzzgraph.strategies import profile_named
    from fuzzgraph.strategies.public import bounded_space

    options = {name: bounds.pop(name) for name in Setup.__struct_fields__ if name in bounds}
    given = [name for name in bounds if name not in ("raw_bs", "modes")]
    if config is not None and given:
        raise UsageError(
            f"{given[0]}={bounds[given[0]]!r}: the config is given. Bound raw_bs and modes alone."
        )
    opened = _open(target, options).target
    return bounded_space(opened.capabilities, profile_named(profile), supports_of(opened), **bounds)


def check_target(setup: Setup, examples: int, seed: int) -> TargetReport:
    """What the target of a setup shows on so many generated cases.

    Raises:
        UsageError: it cannot be opened. TargetFailed: the target itself is at fault.
    """
    from fuzzgraph.strategies import draw
    from fuzzgraph.worker import WorkerClient

    with closing(open_setup(setup)) as opened:
        cases: list[Case] = []
        draw(strategy_of(opened, "ci")(0), seed, examples, cases.append)
        if isinstance(opened.runner, WorkerClient):
            return opened.runner.inspect(cases)
        from fuzzgraph.execution.inspection import inspect_target

        return inspect_target(cast(Any, opened.target), cases, setup)
