"""The page: how many kernels of each target compile for each architecture, and what is refused."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from compiled.architectures import ARCHITECTURES

Found = Mapping[tuple[str, str], list[Any]]
"""Target and release -> the lines of it."""

_TEXT = """\
# Kernels compiled without a device

Every Triton kernel that a target launched in {cases} drawn cases, with the narrowest and the widest
heads and the dtypes that it draws on a device, compiled for five architectures with Triton {triton}
on {machine}; no device is needed. A cell says how many of a target's kernels compiled, of how many:
kernels count once for each set of argument types, constants and options. What was launched with
float16 was also compiled with bfloat16. A kernel that compiles and asks for more shared memory than
the device has counts as refused, because a launch would be.

Constants are those that the engine chose here, where it takes the machine for an NVIDIA GPU: on AMD
it may choose others. Kernels begin while those before them end where the architecture has such
launches. Of autotuned kernels the first config was compiled, and of launches that differ only in
which numbers are 1, or which ones 16 divides, the first. Of a kernel with the same kinds of floats
at the same head dims {most} were compiled, where more were launched."""


def page(found: Found, missing: Sequence[tuple[str, str]], cases: int, most: int) -> str:
    """All of it as Markdown.

    Args:
        missing: targets and releases that were not run.
    """
    text = _TEXT.format(
        cases=cases, most=most, triton=version("triton"), machine=platform.machine()
    )
    sections = [text, "\n".join(_summary(found)), "\n".join(_refusals(found))]
    sections += ["\n".join(_targets(found)), "\n".join(_silent(found))]
    if missing:
        sections.append("\n".join(_missing(missing)))
    return "\n\n".join(sections) + "\n"


def _kernels(lines: Iterable[Any]) -> list[Any]:
    return [line for line in lines if "kernel" in line]


def _summary(found: Found) -> Iterator[str]:
    named = {
        (line["module"], line["kernel"]) for lines in found.values() for line in _kernels(lines)
    }
    yield f"{len(named)} kernels by their names, with these arguments:\n"
    yield "| architecture | kernels | compiled | refused | crashed or too slow |"
    yield "|---|---|---|---|---|"
    every = [line for lines in found.values() for line in _kernels(lines)]
    for each in ARCHITECTURES:
        kinds = [line["kind"] for line in every if line["architecture"] == each.name]
        compiled, refused = kinds.count("compiled"), kinds.count("refused")
        yield f"| {each.name} | {len(kinds)} | {compiled} | {refused} | " + (
            f"{len(kinds) - compiled - refused} |"
        )


def _refusals(found: Found) -> Iterator[str]:
    """Kernel, shapes, floats and architectures of each reason."""
    yield "## What is refused\n"
    reasons: dict[tuple[str, str, str, str], dict[str, set[str]]] = {}
    for (target, _), lines in found.items():
        for line in _kernels(lines):
            if line["kind"] != "compiled":
                drawn = "yes" if line["drawn"] else "no"
                key = line["kernel"], line["architecture"], drawn, _reason(line)
                seen = reasons.setdefault(key, {})
                seen.setdefault("shapes", set()).add(line["shape"])
                seen.setdefault("floats", set()).add(line["floats"] or "none")
                seen.setdefault("targets", set()).add(target)
    if not reasons:
        yield "Nothing."
        return
    yield "| kernel | on | head dims | floats | drawn there | what is said | targets |"
    yield "|---|---|---|---|---|---|---|"
    merged: dict[tuple[str, str, str, str, str, int], list[str]] = {}
    for (kernel, architecture, drawn, why), seen in reasons.items():
        shapes = ", ".join(sorted(seen["shapes"], key=_widths))
        key = kernel, shapes, ", ".join(sorted(seen["floats"])), drawn, why, len(seen["targets"])
        merged.setdefault(key, []).append(architecture)
    for (kernel, *cells, count), names in sorted(merged.items()):
        yield f"| `{kernel}` | {', '.join(names)} | {' | '.join(cells)} | {count} |"


def _reason(line: Any) -> str:
    why = str(line["why"]).replace("|", "\\|")
    return why if line["kind"] == "refused" else f"{line['kind']}: {why}"


def _widths(shape: str) -> list[int]:
    return list(map(int, shape.split("x")))


def _targets(found: Found) -> Iterator[str]:
    names = [each.name for each in ARCHITECTURES]
    yield "## Targets\n"
    yield f"| target | release | {' | '.join(names)} | head dims run | refused at |"
    yield f"|---|---|{'---|' * len(names)}---|---|"
    for (target, release), lines in found.items():
        kernels = _kernels(lines)
        if kernels:
            cells = " | ".join(_cell(kernels, name) for name in names)
            run = ", ".join(line["shape"] for line in lines if "launches" in line)
            refused = {line["shape"] for line in kernels if line["kind"] != "compiled"}
            at = ", ".join(sorted(refused, key=_widths))
            yield f"| `{target}` | {release} | {cells} | {run} | {at} |"


def _cell(kernels: list[Any], architecture: str) -> str:
    kinds = [line["kind"] for line in kernels if line["architecture"] == architecture]
    return f"{kinds.count('compiled')} of {len(kinds)}"


def _silent(found: Found) -> Iterator[str]:
    """Targets without kernels, those that failed or are not driven on a device, and cases that did
    not run."""
    yield "## Not compiled, or compiled as on a CPU\n"
    none: list[str] = []
    for (target, release), lines in found.items():
        name = f"`{target}` {release}".strip()
        failed = [line["failed"] for line in lines if "failed" in line]
        on_cpu = [line["not_on_device"] for line in lines if "not_on_device" in line]
        kept = {line["kept"] for line in lines if line.get("kept")}
        unread = {f"{k}: {v}" for line in lines for k, v in line.get("unread", {}).items()}
        for why in [*failed, *sorted(kept), *sorted(unread)]:
            yield f"* {name}: {why[:240]}"
        for why in on_cpu:
            yield f"* {name} is not driven on a device: {why}"
        if not (_kernels(lines) or failed or kept):
            none.append(name)
    if none:
        yield f"\nNo Triton kernel is launched by {', '.join(none)}."


def _missing(missing: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "## Not run\n"
    releases = dict.fromkeys(release for _, release in missing)
    for each in releases:
        names = [f"`{target}`" for target, release in missing if release == each]
        yield f"* {each or 'here'}, {len(names)} targets: {', '.join(names)}"
