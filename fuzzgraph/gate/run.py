"""A whole gate: the base in a worktree, the targets that a change concerns, a campaign on each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

import fuzzgraph
from fuzzgraph.campaign import load_corpus, run_campaign
from fuzzgraph.checkout import Checkout
from fuzzgraph.compatibility import released_targets, targets_by_package
from fuzzgraph.errors import FuzzGraphError, OutOfTime, UsageError
from fuzzgraph.gate.against_base import AgainstBase
from fuzzgraph.gate.beside import beside
from fuzzgraph.gate.changed_lines import ChangedLines
from fuzzgraph.gate.changed_statements import ChangedStatements
from fuzzgraph.gate.changes import Changes, read_changes
from fuzzgraph.gate.choose import Choice, Chosen, choose
from fuzzgraph.gate.executed import Executed, ExecutedMap
from fuzzgraph.gate.records import (
    CUT,
    GateSpec,
    GateSummary,
    GateTarget,
)
from fuzzgraph.open_target import Opened, check_names, open_setup
from fuzzgraph.policy import load_policy
from fuzzgraph.run.events import CaseRun, Emit, Event, RunSummary
from fuzzgraph.run.spec import Budget, RunSpec, Setup
from fuzzgraph.source_tree import SourceTree, find_tree, package_of
from fuzzgraph.text.escaping import file_name
from fuzzgraph.text.numbers import counted
from fuzzgraph.worktrees import commit_of, merge_base, worktree

Say = Callable[[str], object]
_ENOUGH = 3
"""Findings that condemn a change on one target: more of them cost time and tell little."""
_CONFIRM_SECONDS = 60.0
"""For confirming, after the search, what there was no time for and what seems mended."""


@dataclass(frozen=True, slots=True)
class _Trees:
    """The tree under test and its base."""

    head: SourceTree
    checkout: Checkout
    commit: str
    """Of the base."""
    base: SourceTree


@dataclass(slots=True)
class _Clock:
    begin: float = field(default_factory=time.monotonic)
    first_case: float = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def see(self, event: Event) -> None:
        """Note when the first case was run."""
        if not self.first_case and isinstance(event, CaseRun):
            self.first_case = self.seconds


def run_gate(spec: GateSpec, *, say: Say, emit: Emit) -> GateSummary:
    """Judge a tree by its base.

    Args:
        spec: its folder `out` exists and is empty.
        say: told what is done, a line at a time.
        emit: sees the events of each campaign.

    Raises:
        UsageError: no checkout, no such base, no such package; nothing is left behind.
    """
    clock = _Clock()
    for target in spec.targets:
        check_names(Setup(target=target))
    with _trees(spec) as trees:
        changes = read_changes(
            trees.checkout, _package(trees.base), _package(trees.head), trees.commit
        )
        summary = GateSummary(
            fuzzgraph=fuzzgraph.__version__,
            package=trees.head.package,
            base=trees.commit,
            head=trees.head.identity,
            branch=trees.checkout.branch,
            spec=spec,
            touched=tuple(file.path for file in changes.files),
            same=changes.same,
            other=changes.other,
        )
        if trees.commit == trees.checkout.commit:
            say("the base is the commit that is checked out: what is not committed is judged")
        choice, not_driven = _choice(spec, trees, changes, say)
        statements = ChangedStatements(changes, _package(trees.head), _package(trees.base))
        targets = _all_run(spec, trees, choice, statements, clock, say, emit)
    summary = msgspec.structs.replace(
        summary,
        targets=targets,
        **statements.told(),
        left_out=choice.left_out,
        not_driven=not_driven,
        seconds=round(clock.seconds, 1),
        first_case_seconds=round(clock.first_case, 1),
    )
    return msgspec.structs.replace(summary, exit_code=_exit_code(summary))


def _exit_code(summary: GateSummary) -> int:
    if summary.new:
        return 1
    runs = [one.summary for one in summary.targets]
    whole = all(one is not None and one.exit_code != 3 and one.reason not in CUT for one in runs)
    return 0 if whole else 3


def _package(tree: SourceTree) -> Path:
    return tree.root / tree.package


@contextlib.contextmanager
def _trees(spec: GateSpec) -> Iterator[_Trees]:
    head = _tree(spec)
    if head.checkout is None:
        raise UsageError(
            f"source={spec.source!r} is not a git checkout, so it has no base. Name a checkout of "
            f"{head.package}."
        )
    checkout = head.checkout
    named = commit_of(checkout, spec.base, "base")
    commit = merge_base(checkout, named, f"base={spec.base!r}")
    with worktree(checkout, commit) as folder:
        # The package's folder lies as deep below the root that is imported from as in the head.
        root = folder.parent
        yield _Trees(head, checkout, commit, find_tree(str(root), head.package))


def _tree(spec: GateSpec) -> SourceTree:
    """The tree of the package that the targets name, or of the one that it holds."""
    from fuzzgraph.targets import open_target

    if spec.targets:
        setup = Setup(target=spec.targets[0], source=spec.source)
        return find_tree(spec.source, package_of(setup, open_target(setup.target)))
    packages = list(targets_by_package())
    for package in packages:
        with contextlib.suppress(UsageError):
            return find_tree(spec.source, package)
    if len(packages) == 1:
        return find_tree(spec.source, packages[0])  # says why not
    raise UsageError(
        f"source={spec.source!r} holds none of the engines that targets are registered for "
        f"({', '.join(packages)}). Name a checkout of one of them, or a target with --target."
    )


def _choice(
    spec: GateSpec, trees: _Trees, changes: Changes, say: Say
) -> tuple[Choice, dict[str, str]]:
    """The targets to run, and those of which nobody knows what they execute."""
    say(_change_words(changes))
    if not changes.files:
        return Choice(), {}
    if spec.targets:
        share = spec.seconds / len(spec.targets)
        return Choice(tuple(Chosen(target, (), share) for target in spec.targets)), {}
    executed = _executed(spec, trees, changes, say)
    choice = choose(changes, executed, spec.seconds, 1)
    return choice, {name: record.why for name, record in executed.items() if record.why}


def _executed(spec: GateSpec, trees: _Trees, changes: Changes, say: Say) -> dict[str, Executed]:
    """What each target executes; a stale record is made anew unless it chooses its target."""
    base = trees.base
    setup = Setup(source=str(base.root), tree=trees.commit)
    known = ExecutedMap(base.package, base.root, setup)
    executed: dict[str, Executed] = {}
    again: list[str] = []
    for target in _candidates(spec, base.package):
        record, fresh = known.kept(target)
        if record is not None and (fresh or choose(changes, {target: record}, 1.0, 1).chosen):
            executed[target] = record
        else:
            again.append(target)
    if again:
        say(f"recording what {len(again)} of {len(again) + len(executed)} targets execute")
        executed |= known.record(again, spec.jobs, lambda record: say(_recorded_words(record)))
    return executed


def _recorded_words(record: Executed) -> str:
    functions = sum(map(len, record.functions.values()))
    ran = f"{counted(functions, 'function')} in {counted(record.cases, 'case')}"
    return f"  {record.target}: {record.why or ran}"


def _candidates(spec: GateSpec, package: str) -> tuple[str, ...]:
    """The targets to choose from.

    Raises:
        UsageError: a file of settings names one that is no target of this engine.
    """
    names = tuple(released_targets(package))
    for name in spec.among:
        if name not in names:
            raise UsageError(
                f"{spec.settings}: targets names {name!r}, which is no target of {package}. "
                f"'fuzzgraph targets' lists them."
            )
    return tuple(name for name in names if not spec.among or name in spec.among)


def _change_words(changes: Changes) -> str:
    verb = "runs" if len(changes.files) == 1 else "run"
    files = f"{counted(len(changes.files), 'Python file')} {verb} differently"
    same = f", {len(changes.same)} differ in comments and blank lines only" if changes.same else ""
    other = f", {len(changes.other)} are no Python" if changes.other else ""
    return f"the change: {files}{same}{other}"


def _setup(tree: SourceTree, identity: str, target: str) -> Setup:
    """The setup of one tree, named by the folder that its package is imported from."""
    return Setup(target=target, source=str(tree.root), tree=identity)


def _all_run(
    spec: GateSpec, trees: _Trees, choice: Choice, statements: ChangedStatements,
    clock: _Clock, say: Say, emit: Emit,
) -> tuple[GateTarget, ...]:  # fmt: skip
    done = []
    for chosen in choice.chosen:
        say(f"{chosen.target}, {chosen.seconds:.0f} s{_touched_words(chosen)}")
        done.append(_run_one(spec, trees, chosen, statements, clock, emit))
        ran = done[-1].summary
        if ran is not None and ran.reason in CUT:
            break
    return tuple(done)


def _touched_words(chosen: Chosen) -> str:
    shown = ", ".join(chosen.touched[:3])
    more = f" and {len(chosen.touched) - 3} more" if len(chosen.touched) > 3 else ""
    return f": {shown}{more}" if shown else ""


def _run_one(
    spec: GateSpec, trees: _Trees, chosen: Chosen, statements: ChangedStatements,
    clock: _Clock, emit: Emit,
) -> GateTarget:  # fmt: skip
    """A campaign over what the tree shows and the base does not."""
    begin = clock.seconds
    told = GateTarget(target=chosen.target, touched=chosen.touched, folder=chosen.target)
    head = _setup(trees.head, trees.head.identity, chosen.target)
    base = _setup(trees.base, trees.commit, chosen.target)
    folder = Path(spec.out) / "runs" / file_name(chosen.target)
    try:
        with _both_opened(head, base, statements) as (opened, against):
            changed = ChangedLines(statements.changes, _package(trees.head), trees.checkout.below)
            opened = replace(opened, lines_of=changed.first_of(opened.lines_of))
            run = _run_spec(spec, head, chosen, folder)

            def see(event: Event) -> None:
                clock.see(event)
                emit(event)

            summary = run_campaign(
                run, see, seeds=load_corpus(_named(spec.corpus)), opened=opened,
                policy=load_policy(_named(spec.ledger)),
            )  # fmt: skip
            opened.cut_off(time.monotonic() + _CONFIRM_SECONDS)
            summary = _confirmed(summary, against)
            against.confirm_mended()
    except UsageError as error:
        return msgspec.structs.replace(told, why=str(error))
    except FuzzGraphError as error:
        return msgspec.structs.replace(told, why=f"{type(error).__name__}: {error}")
    return msgspec.structs.replace(
        told,
        folder=str(folder.relative_to(spec.out)),
        seconds=round(clock.seconds - begin, 1),
        summary=summary,
        **beside(against.differences, summary, folder, Path(spec.out)),
    )


def _confirmed(summary: RunSummary, against: AgainstBase) -> RunSummary:
    """With a rate for findings that the search had no time to confirm."""
    found = []
    for reported in summary.findings:
        if not reported.finding.confirmed:
            with contextlib.suppress(OutOfTime):
                finding = against.confirm(reported.case, reported.finding)
                reported = msgspec.structs.replace(reported, finding=finding)
        found.append(reported)
    return msgspec.structs.replace(summary, findings=tuple(found))


def _run_spec(spec: GateSpec, setup: Setup, chosen: Chosen, folder: Path) -> RunSpec:
    folder.mkdir(parents=True)
    return RunSpec(
        setup=setup,
        seed=spec.seed,
        budget=Budget(seconds=chosen.seconds, examples=spec.examples, findings=_ENOUGH),
        corpus=spec.corpus,
        ledger=spec.ledger,
        out=str(folder),
    )


def _named(path: str) -> Path | None:
    return Path(path) if path else None


@contextlib.contextmanager
def _both_opened(
    head: Setup, base: Setup, statements: ChangedStatements
) -> Iterator[tuple[Opened, AgainstBase]]:
    """Both engines, opened side by side, and one `Opened` over the two."""
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        opening = [
            pool.submit(open_setup, setup, watched=side.watched)
            for setup, side in ((head, statements.head), (base, statements.base))
        ]
        failures = [one.exception() for one in opening]
        opened = [one.result() for one in opening if one.exception() is None]
        for one in opened:
            stack.callback(one.close)
        for name, failure in zip(("the tree", "its base"), failures, strict=True):
            if failure is not None:
                if isinstance(failure, UsageError):
                    raise UsageError(f"{name}: {failure}") from None
                raise failure
        first, second = opened
        stack.callback(statements.head.note, first.reached)
        stack.callback(statements.base.note, second.reached)
        against = AgainstBase(first.runner, second.runner)
        stack.callback(against.close)

        def cut_off(moment: float) -> None:
            first.cut_off(moment)
            second.cut_off(moment)

        yield (
            replace(first, runner=against, cut_off=cut_off),
            against,
        )
