"""The releases of an engine's package as a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from fuzzgraph import releases
from fuzzgraph.bisect.line import Line, Point
from fuzzgraph.errors import UsageError
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets import open_target


def release_line(setup: Setup, good: str, bad: str, only: Sequence[str] = ()) -> Line:
    """The releases from one end to the other; each is fetched when it is asked.

    Args:
        only: ask no others than these, the two ends among them; empty for all that there are.

    Raises:
        UsageError: the target has no releases, an end is not among them, both are the same, or
            `only` names one that does not lie between them.
    """
    package = str(getattr(open_target(setup.target), "package", ""))
    if not package:
        raise UsageError(
            f"target={setup.target!r} belongs to no package with releases, so that there is "
            "nothing to bisect. Name a target that does (see 'fuzzgraph targets')."
        )
    for version in (good, bad, *only):
        releases.parse(f"{package}=={version}")  # each becomes a folder's name
    known = releases.oldest_first(only) if only else releases.available(package)
    versions = release_range(known, good, bad)
    outside = [version for version in only if version not in versions]
    if outside:
        raise UsageError(
            f"--releases: {', '.join(outside)} does not lie between --good={good} and "
            f"--bad={bad}. Leave it out, or name other ends."
        )

    @contextmanager
    def setup_at(point: Point) -> Iterator[Setup]:
        yield msgspec.structs.replace(setup, release=point.name)

    return Line(
        over="releases",
        points=tuple(Point(version, version) for version in versions),
        bad_is_last=versions[-1] == bad,
        setup_at=setup_at,
        about=f"releases of {package}, {versions[0]} to {versions[-1]}",
    )


def release_range(known: Sequence[str], good: str, bad: str) -> tuple[str, ...]:
    """The releases from one end to the other, oldest first.

    Args:
        known: all releases, oldest first.

    Raises:
        UsageError: an end is not among them, or both are the same.
    """
    for option, version in (("--good", good), ("--bad", bad)):
        if version not in known:
            raise UsageError(
                f"{option}={version!r} is not a known release. Known, newest last: "
                f"{', '.join(known[-8:])}."
            )
    if good == bad:
        raise UsageError(f"--good and --bad are both {good!r}. Name two releases.")
    first, last = sorted((known.index(good), known.index(bad)))
    return tuple(known[first : last + 1])
