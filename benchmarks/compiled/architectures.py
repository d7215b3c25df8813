"""The devices that kernels are compiled for, and what one program of a kernel may have on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """A device as Triton's compiler names it."""

    name: str
    backend: str
    arch: int | str
    warp_size: int
    shared: int
    """Bytes of shared memory that a launch may ask for."""
    dependent_launch: bool
    """Whether a kernel may begin while the one before ends (CUDA C++ Programming Guide,
    "Programmatic Dependent Launch"). Engines ask for it where there is one."""

    def target(self) -> Any:
        """The device as `triton.compile` takes it."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.backend, self.arch, self.warp_size)


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": 164 and 228 KiB in
# a multiprocessor, of which one block gets all but one. AMD's CDNA 3 and 4 ISA: 64 and 160 KiB.
ARCHITECTURES = (
    Architecture("sm_80", "cuda", 80, 32, 163 << 10, False),
    Architecture("sm_90", "cuda", 90, 32, 227 << 10, True),
    Architecture("sm_100", "cuda", 100, 32, 227 << 10, True),
    Architecture("gfx942", "hip", "gfx942", 64, 64 << 10, False),
    Architecture("gfx950", "hip", "gfx950", 64, 160 << 10, False),
)
BY_NAME = {each.name: each for each in ARCHITECTURES}
