"""Records of kernels that touched memory they should not, or that were given what they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from fuzzgraph.text.numbers import counted

AccessKind = Literal["read", "write"]
Where = Literal["outside", "between", "unmapped", "unwritten"]
"""outside: before or behind what was passed. between: inside its extent, in a gap that the strides
of a view leave. unmapped: outside, and not in known memory, so nothing was read or written.
unwritten: inside, but never written (reported on request)."""


@dataclass(frozen=True, slots=True)
class Access:
    """Loads or stores of one source line that missed the memory they belong to."""

    kernel: str
    source: str
    """Line of the kernel, or of a device function that it calls: `file.py:123`."""
    kind: AccessKind
    where: Where
    buffer: str
    """Argument from which the pointer was derived; "?" if it was loaded from memory."""
    region: str
    """Name of the region in the caller's memory; "" if it has none."""
    program: tuple[int, int, int]
    """Ids of the first program that did it."""
    programs: int
    """Programs that did it, at most; loops and launches add up."""
    offset: int
    """Elements from the start of the view to the first offending element of that program."""
    low: int
    high: int
    """Lowest and highest offending offset."""
    elements: int
    """Offending elements; loops and launches add up."""
    extent: int
    """Elements from the first to the last one that may be accessed, gaps included."""
    address: int = 0
    """Of the start of the view, to look up the name that its region gets later."""

    def __str__(self) -> str:
        place = f" ({self.region})" if self.region and self.region != self.buffer else ""
        return (
            f"{self.kernel} at {self.source}, program {self.program}: {self.kind} {self.where}"
            f" {self.buffer}{place} at {self.offset:+d} of {counted(self.extent, 'element')}"
            f" ({self.elements} in all, {self.low:+d} to {self.high:+d})"
        )


@dataclass(frozen=True, slots=True)
class Misuse:
    """The content of an argument that breaks a rule of the kernel that it was passed to."""

    kernel: str
    argument: str
    rule: str
    """What must hold, as a sentence about the argument."""
    got: str
    """The value that breaks it, and where."""
    source: str
    """The kernel's documentation, with its version."""

    def __str__(self) -> str:
        return f"{self.kernel}: {self.rule}; got {self.got} ({self.source})"


@dataclass(frozen=True, slots=True)
class Race:
    """Two programs of one launch touched one place, and at least one wrote it."""

    kernel: str
    source: str
    """Line that wrote."""
    other_source: str
    """Line of the other access."""
    kind: Literal["write and write", "read and write"]
    buffer: str
    region: str
    programs: tuple[tuple[int, int, int], tuple[int, int, int]]
    offset: int
    """Elements from the start of the view to the first such place."""
    elements: int
    """Such places."""
    same_value: bool = False
    """Whether all programs wrote what was there in the end, so that no order changes the result."""
    address: int = 0
    """Of the first such place."""

    def __str__(self) -> str:
        place = f" ({self.region})" if self.region and self.region != self.buffer else ""
        first, second = self.programs
        harmless = self.same_value and self.kind == "write and write"
        same = ", all of the same value" if harmless else ""
        return (
            f"{self.kernel}: programs {first} and {second} {self.kind} {self.buffer}{place} at"
            f" {self.offset:+d} ({counted(self.elements, 'element')}{same};"
            f" {self.source}, {self.other_source})"
        )


SanitizerTool = Literal["memcheck", "initcheck", "racecheck", "synccheck"]
"""The tools of compute-sanitizer: bounds of accesses, reads of what nobody wrote, races in shared
memory, barriers."""


class KernelError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error of a compiled kernel that compute-sanitizer reported; equal ones are counted."""

    tool: SanitizerTool
    kind: str
    """What it is, without a value: 'out-of-bounds read', 'race', 'barrier: Missing wait'."""
    kernel: str
    """'' where the report names none."""
    source: str = ""
    """Line of the kernel: `file.py:123`; '' where it was compiled without its lines."""
    space: str = ""
    """'global', 'shared' or 'local', where an access has one."""
    nbytes: int = 0
    """Size of the access in bytes; 0 for none."""
    address: str = ""
    """Of the first such error, in hexadecimal."""
    place: str = ""
    """Where that lies: in which guarded buffer or red zone, else beside which allocation."""
    buffer: str = ""
    """The guarded buffer that it lies in or beside; '' for none."""
    thread: str = ""
    """Thread and block of the first such error, as in 'thread (3,0,0) in block (0,0,0)'."""
    meets: tuple[str, ...] = ()
    """The other accesses of a race, each with its line."""
    called_from: str = ""
    """The innermost frame of the engine's compiled host code that launched it; '' for none."""
    count: int = 1

    @property
    def where(self) -> str:
        """The kernel with its line, as in 'store_kernel at attention.py:123'."""
        named = self.kernel or "an unnamed kernel"
        return f"{named} at {self.source}" if self.source else named

    @property
    def name(self) -> str:
        """What two runs call the same: kernel, kind and line, no address."""
        return f"{self.where}: {self.kind}"

    def __str__(self) -> str:
        size = f" of {counted(self.nbytes, 'byte')}" if self.nbytes else ""
        space = f" of {self.space} memory" if self.space else ""
        parts = [f"{self.kind}{size}{space}{f' at {self.address}' if self.address else ''}"]
        parts += [self.place, self.thread, *(f"with {other}" for other in self.meets)]
        parts += [f"launched from {self.called_from}" if self.called_from else ""]
        parts += [counted(self.count, "such error")]
        return f"{self.where}: {'; '.join(filter(None, parts))}"
