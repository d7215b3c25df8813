"""The page of `fuzzgraph targets --releases --write`: a part for each engine.

What was not tried this time stays as the page has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING

from fuzzgraph.cli.targets import TargetRecord, excused, judged_modes
from fuzzgraph.text.numbers import counted

if TYPE_CHECKING:
    from fuzzgraph.compatibility import Probe

_PART = "## Releases of "
_JUDGED = "### What is judged"
_HEAD = """\
# Targets by release

One small case on every target and release, in a worker, on a CPU. Written by
`fuzzgraph targets --releases all --write reports/targets.md`; engines that are not named keep
what stands here.

"""


def page(probes: Sequence[Probe], records: Sequence[TargetRecord], before: str = "") -> str:
    """Markdown: which target runs on which release, what is judged, what is excused and why.

    Args:
        records: of every target.
        before: the page as it is; what was not tried now stays.
    """
    parts = _parts(before)
    for package in dict.fromkeys(probe.package for probe in probes):
        now = [one for one in probes if one.package == package]
        known = {record.name for record in records}
        parts[package] = _part(_with_earlier(now, parts.get(package, ""), known), records)
    return _HEAD + "\n".join(f"{_PART}{name}\n\n{parts[name]}" for name in parts)


def _with_earlier(now: Sequence[Probe], part: str, known: Set[str]) -> list[Probe]:
    """Also what the page has of targets that exist and were not tried now."""
    from fuzzgraph.compatibility import tried_before
    from fuzzgraph.releases import oldest_first

    tried = {(one.target, one.release) for one in now}
    earlier = [
        one
        for one in tried_before(now[0].package, part.partition(_JUDGED)[0])
        if one.target in known and (one.target, one.release) not in tried
    ]
    found = [*earlier, *now]
    versions = oldest_first({one.release for one in found})
    return sorted(found, key=lambda one: (versions.index(one.release), one.target))


def _parts(text: str) -> dict[str, str]:
    """Engine -> what the page says of it."""
    _, *found = re.split(rf"^{_PART}(.+)\n\n", text, flags=re.MULTILINE)
    return {name: f"{part.rstrip()}\n" for name, part in zip(found[::2], found[1::2], strict=True)}


def _part(probes: Sequence[Probe], records: Sequence[TargetRecord]) -> str:
    from fuzzgraph.compatibility import table

    tried = {probe.target for probe in probes}
    judged = _judged_section([one for one in records if one.name in tried])
    return f"{table(probes)}\n" + "\n".join(judged)


def _judged_section(records: Sequence[TargetRecord]) -> Iterator[str]:
    """What each target judges, stands in for and excuses; what all have in common stands once."""
    common = [what for what in _first(records).stood_in_for if _in_all(what, records)]
    yield f"{_JUDGED}\n"
    yield f"Stood in for in every target: {'; '.join(common) or 'nothing'}.\n"
    yield "| target | outputs judged | stood in for | excuses |"
    yield "|---|---|---|---|"
    for record in records:
        own = [what for what in record.stood_in_for if what not in common]
        cells = (
            judged_modes(record) or "no",
            "; ".join(own) or "nothing",
            str(len(record.excuses)),
        )
        yield f"| `{record.name}` | {' | '.join(cells)} |"
    yield from _excuses_section(records)


def _first(records: Sequence[TargetRecord]) -> TargetRecord:
    return records[0] if records else TargetRecord(name="")


def _in_all(what: str, records: Sequence[TargetRecord]) -> bool:
    return all(what in record.stood_in_for for record in records)


def _excuses_section(records: Sequence[TargetRecord]) -> Iterator[str]:
    """Each excuse once, with the targets that have it."""
    holders: dict[str, list[str]] = {}
    for record in records:
        for excuse in record.excuses:
            quoted = {**excuse, "what": f"`{excuse['what']}`"}  # its stars would be markup
            holders.setdefault(excused(quoted), []).append(record.name)
    yield "\n### Excuses\n"
    yield "A name that need not follow a rule of handing over, with the source that says so.\n"
    for said, names in holders.items():
        every = len(names) == len(records)
        who = "all targets" if every else ", ".join(f"`{name}`" for name in names)
        yield f"- {said}: {who}"
    yield f"\n{counted(len(holders), 'excuse')} in all."
    yield ""
