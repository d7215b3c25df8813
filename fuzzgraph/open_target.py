"""Opens what a campaign runs on: target, planted fault, graph engine, device, own process or not.

Every name a user can get wrong is checked here, before anything expensive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.errors import FuzzGraphError, OutOfTime, TargetFailed, UsageError
from fuzzgraph.finding import EngineLine, Finding
from fuzzgraph.process.devices import require_usable
from fuzzgraph.run.environment import UNKNOWN, Environment, read_environment
from fuzzgraph.run.runner import Runner
from fuzzgraph.run.spec import Setup
from fuzzgraph.source_tree import package_of, tree_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from fuzzgraph.capabilities import Capabilities
    from fuzzgraph.ports import Target
    from fuzzgraph.repro import Recorder
    from fuzzgraph.worker import WorkerClient


class _Described(Protocol):
    """What strategies ask of a target; a target in a worker answers it as well."""

    name: str
    capabilities: Capabilities

    def unsupported(self, config: EngineConfig) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A runner and the target behind it."""

    setup: Setup
    target: _Described
    runner: Runner
    close: Callable[[], None]
    deaths: Callable[[], int] = lambda: 0
    """How often the engine's own process has died; it has none unless it runs in a worker."""
    cut_off: Callable[[float], None] = lambda moment: None
    """Sets the moment, by `time.monotonic`, at which a case is cut off with OutOfTime. In this
    process nothing can cut it off."""
    killed: Callable[[], int] = lambda: 0
    """How often it was killed from outside and its case run again."""
    environment: Environment = UNKNOWN
    """Of the process that runs the engine."""
    lines_of: Callable[[Case, Finding], tuple[EngineLine, ...]] = lambda case, finding: ()
    """The engine's lines that a finding is about, found by running its case once more."""
    unserved: Callable[[EngineConfig], str] = lambda config: ""
    """Why no server of the engine has a config; '' where one may."""
    reached: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Watched file -> first lines of its watched statements that were executed so far."""
    record: Recorder | None = None
    """Writes standalone scripts where the engine is; None where it is in this process."""
    beside: Callable[[Case, Finding], Finding] = lambda case, finding: finding
    """Adds what compute-sanitizer reports of the case, where the setup asks for it."""

    def located(self, case: Case, finding: Finding) -> Finding:
        """The finding with the engine's lines that it is about, and errors of its kernels.

        Raises:
            OutOfTime: it was cut off.
        """
        if finding.symptom == "kernel_error":
            return finding  # it is about a line of a kernel, which it names
        found = msgspec.structs.replace(finding, lines=self.lines_of(case, finding))
        return self.beside(case, found)


def check_names(setup: Setup) -> None:
    """Refuse an unknown target or fault without opening it.

    Raises:
        UsageError: no such name.
    """
    if setup.fault:
        _target(setup)
        return
    from fuzzgraph.targets import target_names, unknown_target
    from fuzzgraph.targets.own import check_own_name, is_own

    if is_own(setup.target):
        return check_own_name(setup.target)
    if setup.target not in target_names():
        raise unknown_target(setup.target)


def open_setup(
    setup: Setup, *, branches: bool = False, watched: Mapping[str, tuple[int, ...]] | None = None
) -> Opened:
    """Open the target of a setup, in this process or, where it asks for it, in one of its own.

    Args:
        branches: whether verdicts name the engine's branches, at several times the cost.
        watched: file of the setup's release or tree -> first lines of statements; `reached` tells
            which of them were executed.

    Raises:
        UsageError: an unknown target or fault; AdapterUnavailable: its engine is missing.
    """
    opened = _open_setup(setup, branches=branches, watched=watched)
    return _with_what_a_device_needs(opened, by_name=True)


def _with_what_a_device_needs(opened: Opened, *, by_name: bool) -> Opened:
    """The same with what takes a process of its own beside the engine's."""
    if opened.setup.graphs == "device" and by_name:
        opened = _recording_on_a_cpu(opened)
    return _under_the_sanitizer(opened) if opened.setup.sanitizer else opened


def _open_setup(
    setup: Setup, *, branches: bool, watched: Mapping[str, tuple[int, ...]] | None
) -> Opened:
    if watched:  # of a release or a tree, which a process of its own imports
        return _in_worker(setup, _target(setup), branches=branches, watched=watched)
    if _own_apart(setup):
        return _open_own(setup, branches=branches)
    return _open_object(_target(setup), setup, branches=branches)


def _under_the_sanitizer(opened: Opened) -> Opened:
    """The same, with cases run under one of compute-sanitizer's tools as well.

    Raises:
        AdapterUnavailable: it is not here.
    """
    from fuzzgraph.worker.sanitizer import Sanitizer, SanitizingRunner

    setup = opened.setup
    try:
        sanitizer = Sanitizer(setup, engine_paths(setup, cast("Target", opened.target)))
    except BaseException:
        opened.close()
        raise
    runner = SanitizingRunner(opened.runner, sanitizer, setup.target)

    def cut_off(moment: float) -> None:
        opened.cut_off(moment)
        sanitizer.cut_off(moment)

    return replace(opened, runner=runner, cut_off=cut_off, beside=runner.beside)


def _own_apart(setup: Setup) -> bool:
    """Whether a target of one's own runs in a process of its own, as it does unless told not to."""
    return ":" in setup.target and not setup.fault and setup.isolation != "off"


def _open_own(setup: Setup, *, branches: bool) -> Opened:
    """Open it there first: code that ends its process at import must not end this one."""
    if setup.release or setup.source:  # the target says which package that is of
        return _in_worker(setup, _target(setup), branches=branches)
    from fuzzgraph import worker
    from fuzzgraph.targets.own import see_current_folder

    check_names(setup)
    see_current_folder()  # before the worker starts: it imports from the folders of this process
    client = worker.open_client(setup, branches=branches)
    try:
        return _opened_in(client, setup, _target(setup))
    except BaseException:
        client.close()
        raise


def open_target_object(target: Target, setup: Setup) -> Opened:
    """The same for a target at hand.

    Raises:
        UsageError: as `open_setup`, or it has to be opened by name and cannot.
    """
    if setup.sanitizer and not _by_name(target, setup):
        raise UsageError(
            f"sanitizer={setup.sanitizer!r}: target {setup.target!r} is an object of this process, "
            "and the process that is watched opens it by name. Name it as module:factory."
        )
    opened = _open_object(target, setup, branches=False)
    return _with_what_a_device_needs(opened, by_name=_by_name(target, setup))


def _open_object(target: Target, setup: Setup, *, branches: bool) -> Opened:
    if _isolated(target, setup):
        return _in_worker(setup, target, branches=branches)
    if setup.release or setup.source:
        option = "source" if setup.source else "release"
        raise UsageError(
            f"{option}={getattr(setup, option)!r}: target {setup.target!r} runs in this process, "
            f"as it is installed. Drop --{option}."
        )
    from fuzzgraph.execution import Execution
    from fuzzgraph.execution.branches import TracedExecution

    require_usable(setup.device)
    execution = (TracedExecution if branches else Execution)(target, setup)
    from fuzzgraph.ports import engine_packages

    environment = read_environment(engine_packages(target), setup.device)
    return Opened(
        setup,
        target,
        execution,
        execution.close,
        environment=environment,
        lines_of=partial(_lines_here, target, setup, environment.engine_below),
        unserved=execution.unserved,
    )


def _lines_here(
    target: Target, setup: Setup, below: str, case: Case, finding: Finding
) -> tuple[EngineLine, ...]:
    from fuzzgraph.repro import engine_lines

    try:
        return engine_lines(case, finding, target, setup, below)
    except Exception as error:  # of no report is this the end
        print(f"no line of the engine: {type(error).__name__}: {error}", file=sys.stderr)
        return ()


def _isolated(target: Target, setup: Setup) -> bool:
    """Whether the engine gets a process of its own.

    Raises:
        UsageError: it cannot have one, or cannot do without.
    """
    from fuzzgraph.ports import is_isolated

    if setup.isolation == "off" and is_isolated(target):
        raise UsageError(
            f"isolation='off': target {setup.target!r} runs in a process of its own only. Drop the "
            "option."
        )
    if setup.isolation == "on" and not _by_name(target, setup):
        raise UsageError(
            f"isolation='on': target {setup.target!r} is an object of this process, and one of its "
            "own opens it by name. Name it as module:factory."
        )
    if setup.isolation:
        return setup.isolation == "on"
    return is_isolated(target) or _needs_a_process(target, setup)


def _by_name(target: Target, setup: Setup) -> bool:
    return ":" in setup.target or target.name == setup.target


def _needs_a_process(target: Target, setup: Setup) -> bool:
    """On a device a fault ends every later call of its process, so that the engine gets its own.

    A target that is only at hand as an object cannot be opened by name there.
    """
    return setup.device != "cpu" and _by_name(target, setup)


def _target(setup: Setup) -> Target:
    if setup.fault:
        from fuzzgraph.faults import fault_named, target_with

        fault = fault_named(setup.fault)
        if fault.overlap and not setup.overlap:
            raise UsageError(
                f"fault={setup.fault!r} shows only where the host is a step ahead. Add --overlap."
            )
        return target_with(fault)
    check_names(setup)
    from fuzzgraph.ports import use_device
    from fuzzgraph.targets import open_target

    target = open_target(setup.target)
    use_device(target, setup.device)
    return target


def engine_paths(setup: Setup, target: Target) -> list[Path]:
    """What goes first on the path of the process that runs the engine of a setup.

    Raises:
        UsageError: no such release or tree, or another tree than the setup asks for.
    """
    if setup.source:
        return [tree_of(setup, target).root]
    if setup.release:
        from fuzzgraph import releases

        return [releases.ensure(package_of(setup, target), setup.release)]
    return []


def _in_worker(
    setup: Setup,
    target: Target,
    *,
    branches: bool,
    watched: Mapping[str, tuple[int, ...]] | None = None,
) -> Opened:
    """Run the target in a process of its own, with the release or tree that was asked for."""
    from fuzzgraph import worker

    paths = engine_paths(setup, target)
    client = worker.open_client(setup, paths=paths, branches=branches, watched=watched)
    return _opened_in(client, setup, target)


def _opened_in(client: WorkerClient, setup: Setup, target: Target) -> Opened:
    return Opened(
        setup,
        target,
        client,
        client.close,
        deaths=lambda: client.deaths,
        killed=lambda: client.killed,
        environment=client.environment,
        cut_off=client.cut_off,
        lines_of=client.engine_lines,
        unserved=client.unserved,
        reached=client.reached,
        record=client.standalone_script if setup.graphs == "recorder" else None,
    )


def _recording_on_a_cpu(opened: Opened) -> Opened:
    """The same, which records scripts for its device in a process that has none: nothing of a
    device's graph can be read, and what the host does is the same on both."""
    setup = opened.setup
    on_cpu = msgspec.structs.replace(setup, device="cpu", graphs="recorder", sanitizer="")
    moments: list[float] = []

    def record(case: Case, finding: Finding) -> str:
        from fuzzgraph import worker
        from fuzzgraph.repro import NotStandalone

        paths = engine_paths(setup, cast("Target", opened.target))
        try:
            with worker.open_client(on_cpu, paths=paths) as client:
                for moment in moments[-1:]:
                    client.cut_off(moment)
                return client.standalone_script(case, finding, setup.device)
        except (NotStandalone, OutOfTime):
            raise
        except FuzzGraphError as error:
            said = str(error).partition("\n")[0]
            raise NotStandalone(f"it cannot be recorded without its device: {said}") from None

    def cut_off(moment: float) -> None:
        moments.append(moment)
        opened.cut_off(moment)

    return replace(opened, record=record, cut_off=cut_off)


def strategy_of(opened: Opened, profile_name: str) -> Callable[[int], SearchStrategy[Case]]:
    """The cases to draw for a target, by the number of the config pool.

    Raises:
        UsageError: no profile has that name.
    """
    from fuzzgraph.strategies import cases, profile_named

    profile = profile_named(profile_name)
    supports = supports_of(opened.target)

    def strategy(epoch: int) -> SearchStrategy[Case]:
        return cases(opened.target.capabilities, profile.at(epoch), supports=supports)

    return strategy


def supports_of(target: _Described) -> Any:
    """One function for the life of the target: configs are cached by its identity."""

    def supports(config: EngineConfig) -> bool:
        try:
            return target.unsupported(config) is None
        except (Exception, SystemExit, GeneratorExit) as error:
            raise TargetFailed(
                f"target {target.name!r}: unsupported() raised {type(error).__name__}: {error}. "
                "Mend it in the target, then check it with 'fuzzgraph check-target'."
            ) from error

    return supports
