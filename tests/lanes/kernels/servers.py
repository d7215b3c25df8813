"""What kernels of servers use and the stock interpreter does not run on a machine without a GPU."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import triton
import triton.language as tl

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


@triton.autotune([triton.Config({"BY": 2}), triton.Config({"BY": 3})], key=["count"])
@triton.jit
def tuned(x, out, count, BY: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row) * BY)


@triton.heuristics({"BY": lambda args: args["count"]})
@triton.jit
def added(x, out, count, BY: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row) + BY)
