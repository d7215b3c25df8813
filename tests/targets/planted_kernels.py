"""Kernels that compile, that are refused here or there, and one that ends its compiler.

As a script it launches each in Triton's interpreter, and prints what the compilers of the named
architectures make of it.
"""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201
import json
import os
import sys
from dataclasses import asdict

import torch
import triton
import triton.language as tl


def end_the_process(_semantic=None):
    """0 in the interpreter; a compiler, which hands its semantic over, does not survive it."""
    if _semantic is not None:
        os.abort()
    return 0


end_the_process.__triton_builtin__ = True


def wait_for_the_kernel_before(_semantic=None):
    """Nothing in the interpreter; an instruction that few architectures have."""
    return tl.extra.cuda.gdc_wait(_semantic=_semantic) if _semantic is not None else None


wait_for_the_kernel_before.__triton_builtin__ = True


@triton.jit
def one_more(x):
    return x + 1


@triton.jit
def compiles(x, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(x + place, tl.sum(one_more(tl.load(x + place))) + place)


@triton.jit
def multiplies(x, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tile = tl.load(x + place)
    tl.store(x + place, tl.dot(tile, tile).to(tile.dtype))


@triton.jit
def dies(x):
    tl.store(x, end_the_process())


@triton.jit
def begins_early(x, launch_pdl: tl.constexpr):
    if launch_pdl:
        wait_for_the_kernel_before()
    tl.store(x, 1.0)


@triton.jit
def always_begins_early(x):
    wait_for_the_kernel_before()
    tl.store(x, 1.0)


@triton.jit
def keeps_too_much(x, ROWS: tl.constexpr, SIZE: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tile = tl.load(x + place)
    square = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    tl.store(x + square, tl.dot(tl.trans(tile), tile))


def main():
    from compiled.architectures import BY_NAME
    from compiled.compiling import compile_all
    from compiled.launches import Notes, noting

    notes = Notes()
    x = torch.ones(256 * 128)
    with noting(notes):
        compiles[(1,)](x, SIZE=16)
        multiplies[(1,)](x, SIZE=8)
        dies[(1,)](x)
        multiplies[(1,)](x, SIZE=16)
        keeps_too_much[(1,)](x, ROWS=256, SIZE=128)
        begins_early[(1,)](x, launch_pdl=True)
        always_begins_early[(1,)](x)
    every = notes.all()
    for outcome in compile_all(every, [BY_NAME[name] for name in sys.argv[1:]]):
        note = every[outcome.note]
        print(json.dumps({"kernel": note.name, "floats": note.floats(), **asdict(outcome)}))


if __name__ == "__main__":
    main()
