"""The kv-indices writer with the page-size bug: its buffer has room for pages, it writes tokens.

Needs torch and Triton alone, so that other tools can run it too.
"""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import os

os.environ["TRITON_INTERPRET"] = "1"  # what a jit function is depends on it

import torch
import triton
import triton.language as tl


@triton.jit
def kv_indices(req_to_token, rows, lens, kv_indptr, out, stride: tl.constexpr):
    row = tl.program_id(0)
    request = tl.load(rows + row)
    offset = tl.load(kv_indptr + row)
    length = tl.load(lens + row)
    for start in range(0, length, 128):
        places = start + tl.arange(0, 128)
        inside = places < length
        slot = tl.load(req_to_token + request * stride + places, mask=inside)
        tl.store(out + offset + places, slot, mask=inside)


def arguments(batch: int, context: int, page_size: int) -> tuple[object, ...]:
    """Full rows; the buffer has one element for each page. A page of one token is no bug."""
    table = torch.arange((batch + 1) * context, dtype=torch.int32).view(batch + 1, context)
    lens = torch.full((batch,), context, dtype=torch.int32)
    indptr = torch.arange(batch + 1, dtype=torch.int32) * context
    out = torch.zeros(batch * context // page_size, dtype=torch.int32)
    return table, torch.arange(batch) + 1, lens, indptr, out, context
