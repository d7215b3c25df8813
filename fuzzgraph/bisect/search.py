"""Which point to ask next, how many runs that takes, and where the answers change. Runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from fuzzgraph.bisect.records import Answer, Boundary


def most_runs(points: int, *, every: bool = False) -> int:
    """How many points are asked, if each can run the case.

    Args:
        points: both ends included.
        every: whether all of them are asked.

    >>> [most_runs(points) for points in (2, 3, 10, 1000)]
    [2, 3, 6, 12]
    """
    inner = points - 2  # the finding begins at one of inner + 1 places
    return points if every else 2 + inner.bit_length()


def next_point(first: int, last: int, asked: Collection[int]) -> int | None:
    """The middle of the longest stretch that nobody was asked of, between two points.

    Where some cannot run the case, this turns to either side of them, and comes back to the
    others there only when nothing else is left.

    >>> next_point(0, 8, {0, 8}), next_point(0, 8, {0, 4, 8}), next_point(0, 1, {0, 1})
    (4, 2, None)
    """
    stops = [first, *sorted(point for point in asked if first < point < last), last]
    longest = max(pairwise(stops), key=lambda stretch: stretch[1] - stretch[0])
    middle = sum(longest) // 2
    return None if middle == longest[0] else middle


def boundaries(
    points: Sequence[str], answers: Sequence[Answer]
) -> tuple[tuple[Boundary, ...], tuple[Boundary, ...]]:
    """(where it was introduced, where it was fixed); a flaky one counts as broken.

    Args:
        points: all of them, oldest first.
        answers: those of the points that were asked, in the same order.
    """
    told = [answer for answer in answers if answer.verdict != "skipped"]
    came: list[Boundary] = []
    went: list[Boundary] = []
    for one, two in pairwise(told):
        if (one.verdict == "good") == (two.verdict == "good"):
            continue
        between = points[points.index(one.point) + 1 : points.index(two.point)]
        boundary = Boundary(before=one.point, after=two.point, skipped=tuple(between))
        (came if one.verdict == "good" else went).append(boundary)
    return tuple(came), tuple(went)
