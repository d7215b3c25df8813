"""What a bisection comes to, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

from fuzzgraph.finding import Finding

Judgement = Literal["good", "bad", "flaky", "skipped"]
Over = Literal["releases", "commits"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one release or commit makes of the case."""

    point: str
    """A version, or the full name of a commit."""
    subject: str = ""
    """Of the commit."""
    verdict: Judgement
    """`flaky`: it showed in some fresh sessions only. `skipped`: it could not run the case."""
    rate: str = ""
    """Fresh sessions that showed the finding, e.g. '3/3'."""
    why: str = ""
    """Why it was skipped."""


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """Two neighbours, skipped ones left out, of which only one shows the finding."""

    before: str
    after: str
    skipped: tuple[str, ...] = ()
    """What lies between them and could not run the case."""


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a finding, as far as it was asked for."""

    finding: Finding
    over: Over
    points: tuple[str, ...]
    """All that could be asked, oldest first."""
    answers: tuple[Answer, ...]
    """Of those that were asked, oldest first."""
    broken: tuple[Boundary, ...] = ()
    """Where it was introduced: `after` is a first broken one."""
    fixed: tuple[Boundary, ...] = ()
    """Where it was fixed: `after` is a first fixed one."""
