"""Reads the report of compute-sanitizer: text that a program under test could have written as well.

A report is lines that begin with the tool's mark. One space behind it begins an error or a summary,
more of them go on with it. Forms of lines: NVIDIA, Compute Sanitizer User Manual, and reports of
releases 2021 to 2025.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from fuzzgraph.accesses import KernelError, SanitizerTool
from fuzzgraph.text.escaping import one_line

MOST_BYTES = 8 << 20
"""Of a report that are read."""
_LONGEST_NAME = 240
_LONGEST_LINE = 4000
_MARK = b"========="

_NUMBER = r"[0-9,]{1,24}"
_HEX = r"0x[0-9a-f]{1,16}"
_ACCESS = re.compile(
    rf"(?:Potential i|I)nvalid __(\w+)__ (read|write|atomic) of size ({_NUMBER})(?: bytes?)?"
)
_UNWRITTEN = re.compile(rf"Uninitialized __(\w+)__ memory read of size ({_NUMBER})(?: bytes?)?")
_RACE = re.compile(r"(\w+): Race reported between (\w+) access at (.+)")
_MEETS = re.compile(rf"and (\w+) access at (.+?)(?: \[({_NUMBER}) hazards?\])?")
_BARRIER = re.compile(r"Barrier error detected\.? ?(.*?)\.?")
_SUMMARIES = (
    re.compile(rf"ERROR SUMMARY: ({_NUMBER}) errors?"),
    re.compile(rf"RACECHECK SUMMARY: {_NUMBER} hazards? displayed \(({_NUMBER}) errors?, .*\)"),
)
# Of no kernel: calls of the driver that fail, copies by the host, exit codes.
_OF_NO_KERNEL = (
    "Program hit ",
    "Host API memory access error",
    "Target application returned an error",
)
_PASSED_OVER = ("COMPUTE-SANITIZER", "LEAK SUMMARY", "ERROR SUMMARY", "Saved host backtrace")

# The kernel's instruction: its function, as releases wrote it one after the other.
_INSTRUCTIONS = (
    re.compile(rf"(?P<kernel>.+?)(?:\+|:){_HEX}(?: in (?P<file>.+):(?P<line>[0-9]+))?"),
    re.compile(rf"{_HEX} in (?P<file>.+?):(?P<line>[0-9]+):(?P<kernel>.+)"),
    re.compile(rf"{_HEX} in (?P<kernel>.+)"),
    re.compile(rf"(?P<file>.+?):(?P<line>[0-9]+):(?P<kernel>.+?)(?: \(.+ ?: {_HEX}\))?"),
    re.compile(rf"(?P<kernel>.+?) \(.+ ?: {_HEX}\)"),
    re.compile(rf"(?P<kernel>(?!{_HEX}$).+)"),
)
_TRIPLE = r"\([0-9]+,[0-9]+,[0-9]+\)"
_THREAD = re.compile(rf"by (thread {_TRIPLE} in block {_TRIPLE})")
_ADDRESS = re.compile(rf"(?:Address|Access to|Access at) ({_HEX})(?: is (.+))?")
_NEAREST = re.compile(rf"and is (.+ the nearest allocation) at ({_HEX}) of size ({_NUMBER} bytes)")
_HOST_FRAME = re.compile(rf"Host Frame: ?(.*?) ?\[{_HEX}\](?: in (.+))?")
_FRAMES_FILE = re.compile(r"in (\S.*)")
# Libraries that pass a launch on: the driver, its runtime, torch, Python, Triton, the C library.
_PASS_ON = re.compile(
    r"(?:lib(?:cuda|cudart|torch|c10|python|c|stdc\+\+|gcc_s|pthread|dl|m|ffi|sanitizer-collection)"
    r"(?:[_.-]\w*)*\.so[\d.]*|ld-linux.*|python[\d.]*"
    r"|_?_?triton_launcher.*|cuda_utils.*|_ctypes\..*|_C\.cpython.*)"
)


@dataclass(slots=True)
class Reported:
    """One error, where in the report it stands, and what tells whose it is."""

    error: KernelError
    at: int
    """Offset in the report, bytes."""
    path: str = ""
    """File of the kernel as the report has it, with its folders if the tool shows them."""
    address: int | None = None
    nearest: int | None = None
    """Begin of the allocation nearest to the address."""


@dataclass(slots=True)
class Report:
    """What a report says."""

    errors: list[Reported] = field(default_factory=list)
    total: int | None = None
    """Errors by its summary; None where it has none, so that the tool did not come to its end."""
    warnings: int = 0
    """Races that the tool holds for possible ones only."""
    others: list[str] = field(default_factory=list)
    """What it says that is no error of a kernel."""

    @property
    def unread(self) -> str:
        """What it counts as errors in a form that is unknown; '' where all were understood."""
        if self.total and not (self.errors or self.others or self.warnings):
            return f"{self.total} errors"
        return ""


@dataclass(slots=True)
class _Block:
    """An error or a summary: its first line and those that go on with it."""

    head: str
    at: int
    rest: list[str] = field(default_factory=list)


def read_report(text: bytes, tool: SanitizerTool) -> Report:
    """What a report says; lines that are not the tool's are passed over."""
    report = Report()
    for block in _blocks(text[:MOST_BYTES]):
        _take(report, block, tool)
    return report


def _blocks(text: bytes) -> Iterator[_Block]:
    at, block = 0, None
    for line in text.splitlines(keepends=True):
        start, at = at, at + len(line)
        if not line.startswith(_MARK):
            continue
        said = line[len(_MARK) : _LONGEST_LINE].decode(errors="replace").rstrip()
        if said.startswith("  "):
            if block is not None:
                block.rest.append(said.strip())
        elif said:
            if block is not None:
                yield block
            block = _Block(said.strip(), start)
    if block is not None:
        yield block


def _take(report: Report, block: _Block, tool: SanitizerTool) -> None:
    head = block.head
    for form in _SUMMARIES:
        if (summary := form.fullmatch(head)) is not None:
            report.total = _whole(summary[1])
            return
    if head.startswith(_OF_NO_KERNEL):
        report.others.append(_short(head))
    elif (race := _RACE.fullmatch(head)) is not None:
        if race[1].lower() == "error":
            report.errors.append(_race(block, race, tool))
        else:
            report.warnings += 1
    elif (found := _error(block, tool)) is not None:
        report.errors.append(found)
    elif not head.startswith(_PASSED_OVER):
        report.others.append(_short(head))


def _error(block: _Block, tool: SanitizerTool) -> Reported | None:
    """An error of a kernel; None for what names no instruction of one."""
    kind, space, size = _kind(block.head)
    place = next((line[3:] for line in block.rest if line.startswith("at ")), "")
    if not kind and not place:
        return None
    kernel, path, source = _instruction(place)
    frames = [line for line in block.rest if line.startswith("Device Frame:")]
    if frames:  # the outermost is the kernel, where the instruction is in a function that it calls
        kernel = _instruction(frames[-1].removeprefix("Device Frame:").strip())[0] or kernel
    thread = _first(_THREAD, block.rest)
    told, near = _first(_ADDRESS, block.rest), _first(_NEAREST, block.rest)
    if kind.startswith("invalid "):
        kind = f"{_why(told)} {kind.removeprefix('invalid ')}"
    beside = f"{near[1]}, of {near[3]}" if near else ""
    error = KernelError(
        tool=tool,
        kind=kind or re.sub(r"\d+", "#", _short(block.head)),
        kernel=_short(kernel),
        source=_short(source),
        space=space,
        nbytes=size,
        address=told[1] if told else "",
        place=_short(beside),
        thread=thread[1] if thread else "",
        called_from=_short(_called_from(block.rest)),
    )
    return Reported(
        error,
        block.at,
        path,
        int(told[1], 16) if told else None,
        int(near[2], 16) if near else None,
    )


def _kind(head: str) -> tuple[str, str, int]:
    """What is wrong, the space and the size of the access; '' where the form is another."""
    if (access := _ACCESS.fullmatch(head)) is not None:
        return f"invalid {access[2]}", access[1], _whole(access[3])
    if (unwritten := _UNWRITTEN.fullmatch(head)) is not None:
        return "read of what nobody wrote", unwritten[1], _whole(unwritten[2])
    if (barrier := _BARRIER.fullmatch(head)) is not None:
        return f"barrier: {_short(barrier[1]) or 'error'}", "", 0
    return "", "", 0


def _why(told: re.Match[str] | None) -> str:
    """Why an access is invalid, as an adjective."""
    said = told[2] or "" if told else ""
    if "misaligned" in said:
        return "misaligned"
    return "out-of-bounds" if "out of bounds" in said else "invalid"


def _race(block: _Block, race: re.Match[str], tool: SanitizerTool) -> Reported:
    kernel, path, source = _instruction(race[3])
    meets, hazards = [], 0
    for line in block.rest:
        if (other := _MEETS.fullmatch(line)) is not None:
            _, _, line_of = _instruction(other[2])
            meets.append(_short(f"a {other[1].lower()} at {line_of or other[2]}"))
            hazards += _whole(other[3] or "1")
    error = KernelError(
        tool=tool,
        kind=f"race of a {race[2].lower()}",
        kernel=_short(kernel),
        source=_short(source),
        space="shared",
        meets=tuple(dict.fromkeys(meets)),
        called_from=_short(_called_from(block.rest)),
        count=max(hazards, 1),
    )
    return Reported(error, block.at, path)


def _instruction(place: str) -> tuple[str, str, str]:
    """Kernel, path of its file and its source line; '' for what the report does not name."""
    for form in _INSTRUCTIONS:
        if (found := form.fullmatch(place)) is not None:
            parts = found.groupdict()
            path, line = parts.get("file") or "", parts.get("line")
            name = path.replace("\\", "/").rpartition("/")[2]
            return parts["kernel"], path, f"{name}:{line}" if line else ""
    return "", "", ""


def _called_from(lines: list[str]) -> str:
    """The innermost frame of the host that belongs to no library which passes a launch on."""
    for index, line in enumerate(lines):
        frame = _HOST_FRAME.fullmatch(line)
        if frame is None:
            continue
        file = frame[2] or ""
        if not file and index + 1 < len(lines):  # releases up to 2024 have it on the next line
            after = _FRAMES_FILE.fullmatch(lines[index + 1])
            file = after[1] if after else ""
        name = file.rpartition("/")[2]
        if name and not _PASS_ON.fullmatch(name):
            return f"{frame[1] or 'an unnamed function'} in {name}"
    return ""


def _first(form: re.Pattern[str], lines: Iterable[str]) -> re.Match[str] | None:
    return next((found for line in lines if (found := form.fullmatch(line)) is not None), None)


def _whole(number: str) -> int:
    return int(number.replace(",", "") or 0)


def _short(text: str) -> str:
    """A text of the report in one line that can be shown, cut where it is very long."""
    text = one_line(" ".join(text.split()))
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def together(errors: Iterable[KernelError]) -> tuple[KernelError, ...]:
    """Those of one name as the first of them, with how many there are."""
    found: dict[str, KernelError] = {}
    for error in errors:
        known = found.get(error.name)
        count = error.count + (known.count if known else 0)
        found[error.name] = msgspec.structs.replace(known or error, count=count)
    return tuple(found.values())
