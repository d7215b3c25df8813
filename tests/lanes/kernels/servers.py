"""What kernels of servers use and the stock interpreter does not run on a machine without a GPU."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.extra.libdevice import tanh as fast_tanh

import tests.lanes.kernels.launch  # noqa: F401, what a jit function is depends on it

exp = tl.exp


@triton.jit
def _grown(x):
    return exp(x) - exp(0.0 * x)


@triton.jit
def by_alias(x, out):
    """Calls a function of the language by a name of its module, as flash-linear-attention does."""
    row = tl.program_id(0)
    value = tl.load(x + row)
    tl.store(out + row, exp(value) + _grown(value))


@triton.jit
def by_alias_and_print(x, out):
    """The same, run program by program."""
    row = tl.program_id(0)
    value = tl.load(x + row)
    tl.static_print("row")
    tl.store(out + row, exp(value) + _grown(value))


@triton.jit
def ordered(x, out, launch_pdl: tl.constexpr):
    """Waits for the launch before it, as kernels do with programmatic dependent launch."""
    if launch_pdl:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row) + 1)
    if launch_pdl:
        tl.extra.cuda.gdc_launch_dependents()


@triton.autotune([triton.Config({"BY": 3}), triton.Config({"BY": 2})], key=["count"])
@triton.jit
def tuned(x, out, count, BY: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row) * BY)


@triton.autotune([triton.Config({"BY": 2}), triton.Config({"BY": 4})], key=["least"])
@triton.jit
def tuned_from(x, out, least: tl.constexpr, BY: tl.constexpr):
    tl.static_assert(least <= BY)
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row) * BY)


@triton.heuristics({"BY": lambda args: args["count"]})
@triton.jit
def added(x, out, count, BY: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row) + BY)


@triton.jit
def of_the_library(x, out, ALONE: tl.constexpr):
    """The device's library, by its module, by that of one vendor and by a name of its own."""
    row = tl.program_id(0)
    if ALONE:
        tl.static_print("row")
    value = tl.load(x + row)
    of_both = libdevice.log1p(value) + cuda_libdevice.round(value)
    tl.store(out + row, of_both + tl.where(libdevice.isnan(value), 0.0, fast_tanh(value)))


@triton.jit
def of_the_library_in_halves(x, out):
    row = tl.program_id(0)
    tl.store(out + row, libdevice.tanh(tl.load(x + row)))


@triton.jit
def _at(row, index):
    for one in range(index, index + 1):
        row += one.to(tl.int64)  # type: ignore[attr-defined]
    return row


@triton.jit
def by_cast_index(x, out, counts, ALONE: tl.constexpr):
    """Casts its loops' variables as flash-linear-attention does; each row runs its own rounds."""
    row = tl.program_id(0)
    if ALONE:
        tl.static_print("row")
    total = 0.0
    for index in range(tl.load(counts + row)):
        total += tl.load(x + index.to(tl.int64))  # type: ignore[attr-defined]
    for index in tl.static_range(0, 2):
        total += tl.load(x + index.to(tl.int64)) + tl.load(x + _at(0, index))
    tl.store(out + row, total)


@triton.jit
def by_cast_index_to_the_end(x, out, counts):
    """Casts the variable of its last loop, where rows that are done wait for the others."""
    row = tl.program_id(0)
    for index in range(tl.load(counts + row)):
        tl.store(out + row * 4 + index, tl.load(x + index.to(tl.int64)) + row)  # type: ignore[attr-defined]


WIDTH = tl.constexpr(4)


@triton.jit
def by_constant_of_the_module(x, out, ALONE: tl.constexpr):
    """Adds a tensor to a constant of the module and makes a row of what comes out."""
    if ALONE:
        tl.static_print("row")
    places = tl.arange(0, WIDTH)
    behind = (WIDTH + places)[None, :]
    within = (WIDTH > places)[None, :]  # noqa: SIM300 - the constant on the left
    tl.store(out + (2 * WIDTH - places)[None, :] - 1, tl.load(x + behind, mask=within))


@triton.jit
def by_brain_floats(x, y, out, less, ALONE: tl.constexpr):
    """Arithmetic in bfloat16, with numbers of Python among it."""
    row = tl.program_id(0)
    if ALONE:
        tl.static_print("row")
    a = tl.load(x + row)
    b = tl.load(y + row)
    tl.store(out + row, tl.where(a > 1.01, a * b - 0.3, -(a + b)))
    tl.store(less + row, (a < b) & (a != b))


@triton.jit
def sums_of_brain_floats(x, rows, total, SIDE: tl.constexpr, ALONE: tl.constexpr):
    """Sums of a square, over one axis and over both."""
    if ALONE:
        tl.static_print("square")
    square = tl.program_id(0)
    sides = tl.arange(0, SIDE)
    a = tl.load(x + square * SIDE * SIDE + sides[:, None] * SIDE + sides[None, :])
    tl.store(rows + square * SIDE + sides, tl.sum(a, 1))
    tl.store(total + square, tl.sum(a))


@triton.jit
def fused_brain_floats(x, y, out):
    row = tl.program_id(0)
    tl.store(out + row, tl.math.fma(tl.load(x + row), tl.load(y + row), tl.load(x + row)))


@triton.jit
def dot_of_brain_floats(x, y, out, SIDE: tl.constexpr):
    sides = tl.arange(0, SIDE)
    places = sides[:, None] * SIDE + sides[None, :]
    tl.store(out + places, tl.dot(tl.load(x + places), tl.load(y + places)))
