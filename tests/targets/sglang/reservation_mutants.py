"""Changes of what is reserved in `req_to_token`, and of how wide its rows are."""

from __future__ import annotations

import contextlib
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends import triton
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.dflash_verify import BlockVerifySession, BlockVerifyTarget
from fuzzgraph.world import Batch
from tests.targets.sglang.changed_lines import change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_INPUT = "sglang.srt.speculative.dflash_info_v2"
_SIZING = "sglang.srt.mem_cache.allocation_sizing"


def _wide_rows(config: EngineConfig) -> contextlib.AbstractContextManager[None]:
    """Rows of `req_to_token` hold what is reserved: the engine as it is meant."""
    sizing = engine_module(_SIZING)

    def wide() -> int:
        reserved: int = sizing.get_alloc_reserve_per_decode()
        return reserved + config.page_size - 1

    return replaced_names([sizing], {"get_req_to_token_extra_context_len": wide})


class _BlocksInWideRows(BlockVerifyTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BlockVerifySession:
        with _wide_rows(config):
            return super().open_session(config, graphs)


class _ReservingLess(BlockVerifyTarget):
    """Half a block is reserved behind what a request has, not two blocks."""

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BlockVerifySession:
        module = engine_module(_INPUT)
        allocate = module.page_aligned_decode_alloc_lens

        def less(reqs: Any, *, reserve: int, page_size: int) -> Any:
            return allocate(reqs, reserve=reserve // 4, page_size=page_size)

        class Session(BlockVerifySession):
            def _translate(self, batch: Batch) -> Any:
                with replaced_names([module], {"page_aligned_decode_alloc_lens": less}):
                    return super()._translate(batch)

        return Session(config, graphs, self.backend)


class _BranchesInWideRows(triton.TritonTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> triton.TritonSession:
        with _wide_rows(config):
            return super().open_session(config, graphs)


def blocks_in_wide_rows() -> _BlocksInWideRows:
    return _BlocksInWideRows("sglang-dflash-verify-triton", "triton")


def half_a_block_is_reserved() -> _ReservingLess:
    return _ReservingLess("sglang-dflash-verify-triton", "triton")


def branches_in_wide_rows() -> _BranchesInWideRows:
    return _BranchesInWideRows("sglang-triton-verify", "target_verify")


def _counting(line: str, other: str) -> BlockVerifyTarget:
    """With a line of what the engine counts behind a reservation changed."""

    def change(session: BlockVerifySession) -> None:
        change_line_elsewhere(session, _INPUT, "alloc_for_spec_decode", line, other)

    target = BlockVerifyTarget("sglang-dflash-verify-triton", "triton")
    return with_changed_sessions(target, change)


def what_was_reserved_is_not_counted() -> BlockVerifyTarget:
    return _counting(
        "nxt_kv_lens_list = nxt_kv_lens_cpu.tolist()", "nxt_kv_lens_list = cur_kv_lens_cpu.tolist()"
    )


def more_is_counted_than_was_reserved() -> BlockVerifyTarget:
    return _counting(
        "nxt_kv_lens_list = nxt_kv_lens_cpu.tolist()",
        "nxt_kv_lens_list = (nxt_kv_lens_cpu + 16).tolist()",
    )
