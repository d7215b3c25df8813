"""Finds the cause of a difference between two worlds: foreign memory, earlier steps, or chance.

It repeats the step many times, each time from saved bytes and attributes. It may be slow, because
only steps whose screen run differs come here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from fuzzgraph.execution.failures import SessionFailed
from fuzzgraph.execution.pool_writer import StepState
from fuzzgraph.execution.session import OpenSession, Snapshot
from fuzzgraph.memory import NAN_WORLD, Perturbation
from fuzzgraph.observation import Observation, RunKind, StepRecord
from fuzzgraph.rules.comparison import same_bits
from fuzzgraph.world import Batch

# Repetitions in the same world before a difference is blamed on the other world. An engine with two
# possible results agrees with itself every other time, so one repetition would miss half of the
# nondeterministic ones; three miss one in eight.
_AGAIN = 3
_MOST_BLAMED = 1000
"""Places that are blamed together. More than that were not found by any half: nobody can look them
over, and a value that memory of no place decides differs by chance."""


class Attribution:
    """Attributes the differences in the steps of one case, on one open session.

    Args:
        execute: runs a step once, from whatever the session holds.
        screen: runs a step without a past and in another world, both at once.
    """

    def __init__(
        self,
        opened: OpenSession,
        execute: Callable[[Batch, RunKind], Observation],
        screen: Callable[[StepState, Snapshot, Batch, int], Observation],
    ) -> None:
        self._opened = opened
        self._execute = execute
        self._screen = screen

    def attribute(self, step: StepRecord, state: StepState, before: Snapshot, world: int) -> None:
        """Find out which of three causes the screen run showed, and record the runs that tell.

        Args:
            before: the session before the step.
            world: the world in which the screen run differed.
        """
        opened, batch = self._opened, step.batch
        step.nan_world = world == NAN_WORLD
        self._blame(step, before, "other_world", opened.candidates(state, world))
        if batch.via == "graph":
            self._blame(step, before, "left_over", [*opened.rewritten()])
        # Where the engine differs from itself, none of the differences proves anything.
        step.nondeterministic = self._nondeterministic(step, before)
        # The past as a whole: the same step in the same world, on the session after capture.
        opened.reset()
        opened.write_step_state(state, before.image)
        step.runs["twin"] = self._execute(batch, "twin")
        # Neither cause alone shows the difference: it takes both, or chance.
        if not step.nondeterministic and not _one_cause_shows(step):
            self._judge_by_both(step, self._screen(state, before, batch, world))

    def _blame(
        self, step: StepRecord, before: Snapshot, run: RunKind, candidates: list[Perturbation]
    ) -> None:
        """Run with these places changed; record for each differing value which place it reads."""
        step.runs[run] = self._in_other_world(step.batch, before, candidates, run)
        blamed = self._find_blamed(step, before, candidates, run)
        step.blamed = {**step.blamed, **{(run, name): place for name, place in blamed.items()}}

    def _judge_by_both(self, step: StepRecord, screened: Observation) -> None:
        """Repeat the screen run: a finding if it differs again, else nondeterminism."""
        if same(screened, step.runs["replay"]):
            step.nondeterministic = True
        else:
            step.runs["other_world"] = screened

    def _nondeterministic(self, step: StepRecord, before: Snapshot) -> bool:
        """Whether the engine differs from itself in the same world."""
        # A run in another world that agrees with the replay has repeated it.
        replay = step.runs["replay"]
        repeated: tuple[RunKind, ...] = ("other_world", "left_over")
        agreed = sum(same(step.runs[run], replay) for run in repeated if run in step.runs)
        for _ in range(_AGAIN - agreed):
            self._opened.restore(before)
            step.runs["again"] = self._execute(step.batch, "again")
            if not same(step.runs["again"], replay):
                return True
        return False

    def _in_other_world(
        self,
        batch: Batch,
        before: Snapshot,
        changes: Iterable[Perturbation],
        run: RunKind = "other_world",
    ) -> Observation:
        self._opened.restore(before)
        for change in changes:
            change.apply()
        return self._execute(batch, run)

    def _find_blamed(
        self, step: StepRecord, before: Snapshot, candidates: list[Perturbation], run: RunKind
    ) -> dict[str, str]:
        """Output or field that differs in this run -> the changed places that it depends on; one
        for which the search found no few places is left out."""
        open_names = set(_differing(step.runs[run], step.runs["replay"]))
        blamed: dict[str, str] = {}
        while open_names:
            blamed_part = self._bisect(step, before, candidates, open_names)
            # A small part need not change any name by itself. It is then blamed for all names that
            # are left, so that the loop ends.
            explained = open_names & self._changed_by(step, before, blamed_part) or set(open_names)
            if len(blamed_part) <= _MOST_BLAMED:
                places = ", ".join(change.region for change in blamed_part)
                blamed.update(dict.fromkeys(explained, places))
            open_names -= explained
        return blamed

    def _bisect(
        self, step: StepRecord, before: Snapshot, candidates: list[Perturbation], names: set[str]
    ) -> list[Perturbation]:
        """The fewest changed places found that change one of `names`."""
        return fewest(candidates, lambda part: bool(names & self._changed_by(step, before, part)))

    def _changed_by(self, step: StepRecord, before: Snapshot, part: list[Perturbation]) -> set[str]:
        """Outputs and fields that differ once only these places are changed."""
        replay = step.runs["replay"]
        try:
            seen = self._in_other_world(step.batch, before, part)
        except SessionFailed:
            return {*replay.outputs, *replay.metadata}  # an engine that raised shows nothing
        return set(_differing(seen, replay))


def fewest(
    candidates: list[Perturbation], shows: Callable[[list[Perturbation]], bool]
) -> list[Perturbation]:
    """The fewest changed places found, by halves, that show something; all of them together do."""
    while len(candidates) > 1:
        half = len(candidates) // 2
        if shows(candidates[:half]):
            candidates = candidates[:half]
        elif shows(candidates[half:]):
            candidates = candidates[half:]
        else:  # neither half shows it alone: it takes places of both
            break
    return candidates


def _one_cause_shows(step: StepRecord) -> bool:
    """Whether foreign memory alone, or the past alone (whole or in part), makes a difference."""
    runs, replay = step.runs, step.runs["replay"]
    apart: tuple[RunKind, ...] = ("other_world", "left_over", "twin")
    return not all(same(runs[run], replay) for run in apart if run in runs)


def same(one: Observation, two: Observation, but: Collection[str] = ()) -> bool:
    """Outputs and used metadata agree bit for bit, padded rows included.

    Args:
        but: names that are not looked at.
    """
    return all(name in but for name in _differing(one, two))


def _differing(one: Observation, two: Observation) -> Iterator[str]:
    """Names of the outputs and used metadata that do not agree bit for bit."""
    for first, second in ((one.outputs, two.outputs), (one.metadata, two.metadata)):
        if first.keys() != second.keys():
            yield from first.keys() ^ second.keys()
        for name, value in first.items():
            if name in second and not same_bits(value, second[name]):
                yield name
