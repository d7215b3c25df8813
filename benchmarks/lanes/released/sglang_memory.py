"""Writers of sglang's KV caches, and what hands out their slots."""

from __future__ import annotations

from typing import Any

import torch

from released.row import (
    LONG,
    Table,
    below,
    blank,
    floats,
    halves,
    ints,
    longs,
    reached,
    slots,
    zeros,
)

row = Table("sglang")
_KV = "kernels.ops.kvcache"
_MEMORY = "kernels.ops.memory"


@row(f"{_KV}.mla_buffer")
def latent_kv_is_stored(m: Any) -> None:
    loc = longs(3, 0, 5)
    m.set_mla_kv_buffer_triton(halves(8, 1, 40), loc, halves(3, 1, 32), halves(3, 1, 8))
    m._set_mla_kv_buffer_impl(
        halves(8, 1, 32), loc, halves(3, 1, 32), None, reserved_skip_index=0, dcp_world_size=1,
        dcp_rank=0,
    )  # fmt: skip
    m.set_mla_kv_buffer_triton_fp8_quant(
        blank(8, 1, 40, dtype=torch.uint8), loc, halves(3, 1, 32), halves(3, 1, 8),
        torch.float8_e4m3fn,
    )  # fmt: skip
    m.set_mla_kv_scale_buffer_triton(
        below(99, 8, 1, 5, dtype=torch.uint8), loc, below(99, 3, 1, 4, dtype=torch.uint8),
        below(99, 3, 1, 1, dtype=torch.uint8),
    )  # fmt: skip


@row(f"{_KV}.mla_buffer")
def latent_kv_is_read(m: Any) -> None:
    loc = longs(3, 0, 5)
    m.get_mla_kv_buffer_triton(halves(8, 1, 40), loc, halves(3, 1, 32), halves(3, 1, 8))
    m.get_mla_kv_buffer_triton(halves(8, 1, 32), loc, halves(3, 1, 32))


@row(f"{_KV}.cache_ops")
def kv_is_stored_in_pages(m: Any) -> None:
    m.launch_reshape_and_cache_flash(
        halves(3, 2, 16), halves(3, 2, 16) * 2, halves(4, 2, 4, 16).transpose(1, 2),
        halves(4, 2, 4, 16).transpose(1, 2).clone(), longs(5, -1, 14),
    )  # fmt: skip


@row(f"{_KV}.triton_store_cache")
def kv_of_dsv4_is_stored(m: Any) -> None:
    m.triton_fused_store_flashmla(
        floats(3, 512).bfloat16(), blank(2, 64 * 584 + 448, dtype=torch.uint8), longs(5, 0, 70), 64
    )
    m.triton_fused_store_indexer(
        floats(3, 128).bfloat16(), blank(2, 64 * 132, dtype=torch.uint8), longs(5, 0, 70), 64
    )


@row(f"{_KV}.zero_pages", f"{_KV}.copy_pages")
def pages_are_cleared_and_copied(zero: Any, copy: Any) -> None:
    pool = below(250, 8 * 64, dtype=torch.uint8)
    zero.zero_pages(pool, ints(3, 0), 8, 64)
    copy.copy_pages(pool, longs(1, 2), longs(5, 7), 8, 64)


@row(f"{_KV}.cache_move")
def kv_of_all_layers_is_moved(m: Any) -> None:
    layers = [halves(16, 2, 8) for _ in range(3)]
    pointers = reached(*layers).to(torch.uint64)
    m.copy_all_layer_kv_cache_func(
        pointers, ints(*[32] * 3, dtype=LONG), longs(1, 2, 3), longs(9, 4, 12), 3, 4,
        {"byte_tiles": 1, "bytes_per_tile": 128, "num_warps": 1},
    )  # fmt: skip


@row(f"{_KV}.dsa_index_k_cache")
def keys_of_the_index_are_read(m: Any) -> None:
    buffer = below(250, 4, 64 * 132, dtype=torch.uint8)
    m._get_k_and_s_triton(buffer, pages_of_two(), ints(100, 20), 120, 100, 64, 128)


def pages_of_two() -> torch.Tensor:
    return ints(2, 1, 3, 0).view(2, 2)


@row(f"{_MEMORY}.allocator")
def slots_are_handed_out(m: Any) -> None:
    free = slots(16, dtype=LONG)
    m.alloc_extend_kernel[(3,)](
        longs(3, 0, 4), longs(9, 2, 12), longs(38, -1, 47), free, zeros(16, dtype=LONG), 4, 4
    )
    m.alloc_decode_kernel[(3,)](longs(4, 5, 9), longs(38, 43, 51), free, zeros(3, dtype=LONG), 4, 4)


@row(f"{_MEMORY}.common")
def tables_of_requests(m: Any) -> None:
    table, rows = slots(4, 24), longs(2, 0, 3)
    m.get_last_loc_triton_safe(table, rows, longs(4, 0, 24))
    m.get_last_loc_triton(table, rows, longs(4, 0, 24))
    prefixes = [slots(4, dtype=LONG), slots(1, dtype=LONG)[:0], slots(2, dtype=LONG)]
    m.write_req_to_token_pool_triton[(3,)](
        table, rows, reached(*prefixes).to(torch.uint64), longs(4, 0, 2), longs(6, 3, 4),
        longs(2, 3, 2), slots(7, first=60, dtype=LONG), 24,
    )  # fmt: skip


@row(f"{_MEMORY}.virtual_slot")
def virtual_pages(m: Any) -> None:
    to_place, to_page = slots(6, first=0, dtype=LONG), slots(6, first=0, dtype=LONG)
    m.translate_token_ids(loc=longs(5, 0, 11), v2p=to_place, page_size=4)
    m.alloc_bind_inplace(longs(3, 1), to_place, to_page, 2)
    m.bind_inplace(longs(3, 1), longs(5, 0), to_place, to_page)
    m.free_unbind_inplace(longs(3, 1), to_place, to_page)


@row("srt.mem_cache.memory_pool")
def kv_of_a_prefix_is_stored(m: Any) -> None:
    m._set_kv_buffer_prefix_valid_impl(
        halves(4, 2, 8), halves(4, 2, 8) * 2, halves(8, 2, 8), halves(8, 2, 8) * 2, 
        longs(3, 0, 5, 7).view(2, 2), ints(2, 1), 16, torch.float16,
    )  # fmt: skip
