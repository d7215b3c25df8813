"""A bisection from its two ends to the neighbours of which only one shows the finding.

Each answer is of all fresh sessions, so that the two neighbours are known for certain. What is
taken for granted is that the points on either side agree with them; a finding that went and came
back between two points that agree is seen only where all are asked.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.bisect.asking import ask, find_it
from fuzzgraph.bisect.line import Line
from fuzzgraph.bisect.records import Answer, Bisection, Judgement
from fuzzgraph.bisect.search import boundaries, next_point
from fuzzgraph.case import Case
from fuzzgraph.errors import UsageError


def bisect(
    case: Case,
    line: Line,
    *,
    wanted: str = "",
    times: int = 3,
    every: bool = False,
    progress: Callable[[Answer], None] = lambda answer: None,
) -> Bisection:
    """Ask the two ends, then the points between them that still decide, or all of them.

    Args:
        wanted: id or oracle of the finding to follow; '' for the first one that the bad end shows.
        times: fresh sessions for each answer.
        every: ask all points.

    Raises:
        UsageError: the bad end does not show the finding, or the good one does; an end cannot run
            the case.
    """
    last = len(line.points) - 1
    bad, good = (last, 0) if line.bad_is_last else (0, last)
    finding, first = find_it(line, line.points[bad], case, wanted=wanted, times=times)
    progress(first)
    _check_end(line, bad, first, "bad")
    answers = {bad: first}

    def asked(index: int) -> Answer:
        answers[index] = ask(line, line.points[index], case, finding, times)
        progress(answers[index])
        return answers[index]

    _check_end(line, good, asked(good), "good")
    if every:
        for index in range(1, last):
            asked(index)
    else:
        _narrow(answers, asked, last)
    names = tuple(point.name for point in line.points)
    in_order = tuple(answers[index] for index in sorted(answers))
    broken, fixed = boundaries(names, in_order)
    return Bisection(
        finding=finding, over=line.over, points=names, answers=in_order, broken=broken, fixed=fixed
    )


def _narrow(answers: dict[int, Answer], asked: Callable[[int], Answer], last: int) -> None:
    """Ask until no point is left between two neighbours that disagree."""
    first = 0
    begins_good = answers[0].verdict == "good"
    while (index := next_point(first, last, answers)) is not None:
        verdict = asked(index).verdict
        if verdict == "skipped":
            continue
        if (verdict == "good") == begins_good:
            first = index
        else:
            last = index


def _check_end(line: Line, index: int, end: Answer, must: Judgement) -> None:
    if end.verdict == must:
        return
    said = f"cannot run the case: {end.why}" if end.why else f"shows the finding {end.rate}"
    point = line.points[index].short
    raise UsageError(f"--{must}={point} is {end.verdict}: it {said}. Name another end.")
