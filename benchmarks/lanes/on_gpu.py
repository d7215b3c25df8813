"""How far Triton kernels that a GPU compiles are from the same launches over lanes.

    python benchmarks/lanes/on_gpu.py [--launches 4] [--device cuda]

Runs the kernels of `tests/lanes` that stay within their memory. One process has them over lanes,
this one compiles them; both draw the same launches. Floats are counted in units in the last place
(ulp): how many numbers of their dtype lie between two results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

_INTS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_WITH_ADDRESSES = {"pointer_table"}
"""Kernels whose tensors hold addresses of the host's memory, where no GPU finds anything."""
Arrays = Mapping[str, npt.NDArray[np.uint8]]


@dataclass
class Compared:
    """All launches of one kernel."""

    launches: int = 0
    numbers: int = 0
    ulp: int = 0
    """The largest difference of two floats."""
    other: int = 0
    """Whole numbers that differ, and floats of which one alone is NaN."""
    refused: str = ""
    """What the compiler or the device said of the first launch that it did not run."""

    def add(self, got: torch.Tensor, want: torch.Tensor) -> None:
        """Count what a storage holds and what it must hold, flat, of one dtype."""
        self.numbers += got.numel()
        if not got.dtype.is_floating_point or got.itemsize == 1 or not got.numel():
            self.other += int((got.view(torch.uint8) != want.view(torch.uint8)).sum())
            return
        nan = got.isnan() | want.isnan()
        self.other += int((got.isnan() != want.isnan()).sum())
        apart = (_place(got) - _place(want)).abs()[~nan]
        self.ulp = max(self.ulp, int(apart.max()) if apart.numel() else 0)

    def cells(self) -> str:
        return f"{self.launches} | {self.numbers} | {self.ulp} | {self.other} | {self.refused}"


def drawn(count: int) -> Iterator[tuple[str, str, Any]]:
    """(kernel, name of the launch, launch): the same in every process."""
    from tests.lanes.kernels import arithmetic, attention, indices, small_floats, tutorials

    for module in (attention, indices, arithmetic, small_floats, tutorials):
        for kernel, draw in module.DRAWS.items():
            if kernel in _WITH_ADDRESSES:
                continue
            for seed in range(count):
                launch = draw(np.random.default_rng([seed, *kernel.encode()]))
                yield kernel, f"{kernel}/{seed}", launch


def left_over_lanes(count: int) -> dict[str, npt.NDArray[np.uint8]]:
    """What each launch leaves, storage by storage, as bytes."""
    from fuzzgraph.lanes import lanes

    found = {}
    for _, name, launch in drawn(count):
        with lanes():
            launch.run()
        found |= dict(_bytes(name, launch))
    return found


def _bytes(name: str, launch: Any) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    for place, flat in enumerate(launch.storages()):
        yield f"{name}/{place}", flat.view(torch.uint8).cpu().numpy()


def ready(device: str) -> None:
    """Have kernels compiled as they are compared: products of float32 as on a CPU, of which Triton
    keeps 10 bits on NVIDIA's GPUs by default, and descriptors with memory to lie in."""
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    import triton

    if hasattr(triton, "set_allocator"):
        triton.set_allocator(
            lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device)
        )


def compare(count: int, device: str, expected: Arrays) -> dict[str, Compared]:
    """Run each launch on a device, and hold what it leaves against what was left over lanes."""
    found: dict[str, Compared] = {}
    for kernel, name, launch in drawn(count):
        seen = found.setdefault(kernel, Compared())
        there = launch.on(device)
        try:
            there.run()
            left = [flat.cpu() for flat in there.storages()]
        except Exception as error:  # of whatever kind: the compiler's, the driver's
            seen.refused = seen.refused or str(error).strip().partition("\n")[0][:120]
            continue
        seen.launches += 1
        for place, got in enumerate(left):
            raw = torch.from_numpy(expected[f"{name}/{place}"].copy())
            seen.add(got, raw.view(got.dtype))
    return found


def _place(floats: torch.Tensor) -> torch.Tensor:
    """Where floats stand among all of their dtype, ascending; 0.0 and -0.0 are one."""
    raw = floats.view(_INTS[floats.itemsize]).long()
    magnitude = raw & ((1 << (8 * floats.itemsize - 1)) - 1)
    return torch.where(raw < 0, -magnitude, magnitude)


def page(found: Mapping[str, Compared]) -> list[str]:
    """A row for each kernel."""
    head = [
        "| kernel | launches | numbers | largest difference, ulp | others that differ | refused |"
    ]
    return [*head, "|---|---|---|---|---|---|"] + [
        f"| `{kernel}` | {seen.cells()} |" for kernel, seen in found.items()
    ]


def over_lanes(count: int, folder: str) -> Arrays:
    """What is left over lanes, computed by a process that sees no GPU."""
    file = Path(folder, "lanes.npz")
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "TRITON_INTERPRET": "1"}
    command = [sys.executable, __file__, "--over-lanes", str(file), "--launches", str(count)]
    subprocess.run(command, check=True, env={**os.environ, **hidden})
    with np.load(file, allow_pickle=False) as stored:
        return dict(stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=4, help="of each kernel")
    parser.add_argument("--device", default="cuda", help="cpu: the stock interpreter, as a test")
    parser.add_argument("--over-lanes", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.over_lanes:
        np.savez(asked.over_lanes, **left_over_lanes(asked.launches))
        return
    with tempfile.TemporaryDirectory() as folder:
        expected = over_lanes(asked.launches, folder)
    ready(asked.device)
    found = compare(asked.launches, asked.device, expected)
    print("\n".join(page(found)))
    if refused := [kernel for kernel, seen in found.items() if seen.refused]:
        raise SystemExit(f"refused: {', '.join(refused)}")


if __name__ == "__main__":
    main()
