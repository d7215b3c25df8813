"""A Triton kernel that loads one element too many, and drops it."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
import torch
import triton
import triton.language as tl


@triton.jit
def _lengths_ahead(kv_lens, ahead, rows, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    # The last row has no next one: the mask belongs to row + 1.
    length = tl.load(kv_lens + row + 1, mask=row < rows, other=0)
    tl.store(ahead + row, tl.where(row + 1 < rows, length, 0), mask=row < rows)


def load_ahead(kv_lens: torch.Tensor) -> torch.Tensor:
    """The length of each row's successor, 0 for the last one; int32 like `kv_lens`."""
    ahead = torch.empty_like(kv_lens)
    rows = len(kv_lens)
    if rows:
        _lengths_ahead[(1,)](kv_lens, ahead, rows, BLOCK=triton.next_power_of_2(rows))
    return ahead
