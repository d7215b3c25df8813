"""The table of planted faults in the documentation, from real figures only."""

from __future__ import annotations

from fuzzgraph.errors import UsageError
from fuzzgraph.faults.catalogue import FAULTS
from fuzzgraph.faults.scoring import FaultScore, Score

_BEGIN = "<!-- real output: python -m fuzzgraph.faults -->"
_END = "<!-- /real output -->"
_HEAD = (
    "| fault | class | clause | found in | examples | seconds | steps | requests | oracles |",
    "|---|---|---|---|---|---|---|---|---|",
)


def markdown(result: Score) -> str:
    """One row per fault, then who finds what alone and what became of the healthy engine."""
    rows = [_row(one, result.seeds) for one in result.faults]
    healthy = result.healthy
    last = f"Healthy engine: {healthy.findings} findings in {healthy.cases} cases."
    return "\n".join((*_HEAD, *rows, "", *_alone(result), "", last))


def _row(one: FaultScore, seeds: int) -> str:
    fault = FAULTS[one.name]
    cells = (
        f"`{one.name}`",
        fault.kind,
        fault.clause,
        f"{one.found_in}/{seeds}",
        one.examples,
        one.seconds,
        one.steps,
        one.requests,
        ", ".join(one.oracles),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _alone(result: Score) -> list[str]:
    """Per oracle the faults that no other oracle found."""
    alone: dict[str, list[str]] = {}
    for one in result.faults:
        if len(one.oracles) == 1:
            alone.setdefault(one.oracles[0], []).append(f"`{one.name}`")
    return [f"- `{oracle}` alone finds {', '.join(names)}." for oracle, names in alone.items()]


def in_document(result: Score, text: str) -> str:
    """The document with its table replaced.

    Raises:
        UsageError: the document lacks the markers between which the table stands.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise UsageError(f"the document lacks {_BEGIN} ... {_END}. Put them where the table goes.")
    return f"{before}{_BEGIN}\n{markdown(result)}\n{_END}{after}"
