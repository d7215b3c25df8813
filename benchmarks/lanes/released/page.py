"""What the rows showed, as a section of `reports/lanes.md`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

TITLE = "## Kernels of released engines"
Found = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""(engine, capability) -> what came of each row, see `processes.Seen`."""
_CAUSES = (
    ("_semantic", "an alias of the language, or `gdc_wait` and its like"),
    ("'int' object has no attribute 'to'", "a cast of a loop's variable"),
    ("active drivers", "a config to be chosen by timing"),
    ("'NoneType' object has no attribute", "the device's library"),
    ("nelement", "a grid that looks at tensors, or puts others in their place"),
    ("'tuple' object has no attribute", "a constant of the module beside a tensor"),
    ("inline_asm", "inline assembly"),
    ("get_bf16", "a constant of bfloat16"),
)


def section(found: Found, versions: Mapping[str, str]) -> list[str]:
    """The lines of the section."""
    every = [launch for rows in found.values() for launch in _launches(rows)]
    return [
        TITLE,
        "",
        f"Kernels of {' and '.join(f'{name} {versions[name]}' for name in _engines(found))} as"
        " released, launched by the engines' own code where it runs without a GPU, which claims the"
        " compute capability named. Each launch runs in Triton's own interpreter, then"
        " 3 to 10 times over lanes on the same memory; every byte of every argument's storage is"
        " compared each time. `benchmarks/lanes/released/` has the calls, each in a process of its"
        " own.",
        "",
        *_totals(found),
        "",
        f"Launches over lanes that left Triton's bytes were {_ratios(every)} faster, played back,"
        " than the one in Triton's interpreter.",
        "",
        "Why Triton's interpreter cannot run them (kernels, at either capability):"
        f" {_causes(found)}.",
        "",
        *_exceptions(found),
        *_calls(found),
    ]


def _engines(found: Found) -> list[str]:
    return list(dict.fromkeys(engine for engine, _ in found))


def _launches(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for launch in row["launches"]:
            yield {**launch, "row": row["row"], "why": row["unequal"]}


def _kernels(launches: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    return {(launch["module"], launch["kernel"]) for launch in launches}


def _totals(found: Found) -> Iterator[str]:
    yield (
        "| engine, capability | kernels | launches | not in Triton's interpreter | not over lanes |"
        " fell back | same bytes | other bytes |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for (engine, capability), rows in found.items():
        launches = list(_launches(rows))
        yield _total(f"{engine}, {capability}", launches)
    for capability in dict.fromkeys(each for _, each in found):
        both = [launch for key, rows in found.items() if key[1] == capability
                for launch in _launches(rows)]  # fmt: skip
        yield _total(f"both, {capability}", both)


def _total(name: str, launches: Sequence[Mapping[str, Any]]) -> str:
    kernels = len(_kernels(launches))
    refused = len(_kernels(each for each in launches if each["stock"]))
    failed = len(_kernels(each for each in launches if each["lanes"]))
    fallen = len(_kernels(each for each in launches if each["fallbacks"] and not each["lanes"]))
    compared = [each for each in launches if each["equal"] is not None]
    same = sum(each["equal"] for each in compared)
    share = f"{refused} ({100 * refused / max(kernels, 1):.0f} %)"
    return (
        f"| {name} | {kernels} | {len(launches)} | {share} | {failed} | {fallen} |"
        f" {same} of {len(compared)} launches | {len(compared) - same} |"
    )


def _ratios(launches: Iterable[Mapping[str, Any]]) -> str:
    ratios = [
        each["seconds"][0] / each["seconds"][1]
        for each in launches
        if each["equal"] and each["seconds"][1] > 0
    ]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.0f} times (quartiles {low:.0f} and {high:.0f})"


def _causes(found: Found) -> str:
    counted: Counter[str] = Counter()
    known: set[tuple[str, str, str]] = set()
    for rows in found.values():
        for launch in _launches(rows):
            if launch["stock"]:
                key = (launch["module"], launch["kernel"], _cause(launch["stock"]))
                if key not in known:
                    known.add(key)
                    counted[key[2]] += 1
    return ", ".join(f"{cause} ({count})" for cause, count in counted.most_common())


def _cause(said: str) -> str:
    return next((cause for part, cause in _CAUSES if part in said), said)


def _exceptions(found: Found) -> Iterator[str]:
    """Whatever is not "ran over lanes, same bytes, nothing reported"."""
    lines: dict[str, None] = {}
    for (engine, _), rows in found.items():
        for row in rows:
            if row["error"]:
                lines[f"`{row['row']}` of {engine} ended: {row['error']}"] = None
        for launch in _launches(rows):
            name = f"`{launch['kernel']}` of {engine}"
            if launch["lanes"]:
                lines[f"{name} cannot run over lanes: {_cause(launch['lanes'])}"] = None
            elif launch["fallbacks"]:
                lines[f"{name} fell back: {'; '.join(launch['fallbacks'])}"] = None
            if launch["equal"] is False:
                why = launch["why"] or "NOT EXPLAINED"
                lines[f"{name} leaves other bytes ({launch['row']}): {why}"] = None
            for said in (*launch["accesses"], *launch["races"]):
                lines[f"{engine}: {said}"] = None
    yield "All that is not as it should be, or was reported:"
    yield ""
    yield from (f"- {line}" for line in lines)
    yield ""


def _calls(found: Found) -> Iterator[str]:
    yield "| call | kernels | Triton's interpreter | lanes |"
    yield "|---|---|---|---|"
    for engine in _engines(found):
        by_capability = {key[1]: rows for key, rows in found.items() if key[0] == engine}
        named: dict[str, list[Any]] = {}
        for capability, rows in by_capability.items():
            for row in rows:
                named.setdefault(row["row"], []).append((capability, row))
        for name, seen in named.items():
            yield f"| {engine}: {name} | {_names(seen)} | {_stock(seen)} | {_lanes(seen)} |"


def _names(seen: Sequence[Any]) -> str:
    names = dict.fromkeys(each["kernel"] for _, row in seen for each in row["launches"])
    return ", ".join(f"`{name}`" for name in names)


def _stock(seen: Sequence[Any]) -> str:
    parts = []
    for _, row in seen:
        refused = {each["kernel"] for each in row["launches"] if each["stock"]}
        every = {each["kernel"] for each in row["launches"]}
        said = f"{len(every) - len(refused)} of {len(every)}" if refused else "yes"
        parts.append(said if len(every) > 1 or not refused else "no")
    if len(set(parts)) == 1:
        return parts[0]
    return ", ".join(
        f"{said} at {capability}" for (capability, _), said in zip(seen, parts, strict=True)
    )


def _lanes(seen: Sequence[Any]) -> str:
    launches = [each for _, row in seen for each in row["launches"]]
    if any(row["error"] for _, row in seen):
        return "ended, see above"
    if any(each["lanes"] for each in launches):
        return "no"
    said = "yes"
    if any(each["fallbacks"] for each in launches):
        said = "fell back"
    if any(each["equal"] is False for each in launches):
        said += ", other bytes"
    if any(each["accesses"] or each["races"] for each in launches):
        said += ", reported"
    return said
