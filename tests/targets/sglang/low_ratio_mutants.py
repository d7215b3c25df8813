"""DeepSeek V4.1's decode and verify with one line of the engine changed; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import Mode
from fuzzgraph.targets.sglang.backends.dsv41 import Dsv41Target
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

__all__ = [
    "another_ratio_in_the_pages",
    "drafts_of_the_ring",
    "index_keys_by_slots_of_tokens",
    "index_lengths_of_the_other_ratio",
    "keys_of_the_padding",
    "lengths_of_the_first_drafts",
    "lengths_of_the_step_before",
    "lengths_without_a_dimension",
    "pages_of_the_first_rows",
    "requests_in_another_order",
    "requests_of_other_rows",
    "slots_of_the_next_block",
]

_DSV4 = "sglang.srt.layers.attention.dsv4"
_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend"
_SCORING = f"{_DSV4}.v41_indexer.scoring"


def _target(mode: Mode, change: Callable[[Any], None]) -> Dsv41Target:
    name = "sglang-dsv41-verify" if mode == "target_verify" else "sglang-dsv41"
    return with_changed_sessions(Dsv41Target(name, mode), change)


def _line(mode: Mode, method: str, line: str, other: str) -> Dsv41Target:
    """The backend's method with another line."""
    return _target(mode, lambda session: change_line(session.backend, method, line, other))


def _elsewhere(mode: Mode, holder: str, name: str, line: str, other: str) -> Dsv41Target:
    """Another line elsewhere in the engine, as `change_line_elsewhere` says it."""
    return _target(mode, lambda session: change_line_elsewhere(session, holder, name, line, other))


def lengths_of_the_step_before() -> Dsv41Target:
    """Slots and lengths of both ratios are those of rows with one token less."""
    return _elsewhere(
        "decode",
        "sglang.kernels.ops.attention.dsv4.metadata_kernel",
        "build_low_ratio_metadata",
        "seq_lens, out_loc, *outputs",
        "seq_lens - 1, out_loc, *outputs",
    )


def index_lengths_of_the_other_ratio() -> Dsv41Target:
    """The indexer of groups of two counts keys as if each token had one."""
    return _line(
        "decode",
        "init_forward_metadata_indexer",
        "else core_attn_metadata.c2_topk_lengths_clamp1",
        "else core_attn_metadata.c1_topk_lengths_clamp1",
    )


def another_ratio_in_the_pages() -> Dsv41Target:
    """The indexer's pages are those of the other ratio."""
    return _elsewhere(
        "decode",
        _BACKEND,
        "expand_index_page_table",
        "full_page_size // compress_ratio",
        "full_page_size // (3 - compress_ratio)",
    )


def slots_of_the_next_block() -> Dsv41Target:
    """Each small page of the indexer's is taken for the one behind it."""
    return _elsewhere(
        "decode",
        _BACKEND,
        "expand_index_page_table",
        "base.unsqueeze(-1) + offsets",
        "base.unsqueeze(-1) + offsets + 1",
    )


def index_keys_by_slots_of_tokens() -> Dsv41Target:
    """The indexer's keys of two tokens are written to the slots of tokens."""
    return _line(
        "decode",
        "_low_ratio_compress_fused",
        "out_loc = core.c2_out_loc",
        "out_loc = core.c1_out_loc",
    )


def keys_of_the_padding() -> Dsv41Target:
    """Each token is taken for padding, whose key is not written."""
    return _line(
        "decode",
        "_low_ratio_compress_fused",
        "pos,\n            core.raw_out_loc,",
        "pos,\n            core.raw_out_loc * 0,",
    )


def requests_of_other_rows() -> Dsv41Target:
    """Pairs are looked up and kept in the ring of another row's request."""
    return _elsewhere(
        "decode",
        _BACKEND,
        "token_req_indices",
        "return req\n",
        "return req.roll(1)\n",
    )


def lengths_without_a_dimension() -> Dsv41Target:
    """dsv4/metadata.py line 229, off by one: lengths get their dimension in front."""
    return _elsewhere(
        "target_verify",
        f"{_DSV4}.metadata:PagedIndexerMetadata",
        "__post_init__",
        "compressed_seq_lens.unsqueeze(-1)",
        "compressed_seq_lens.unsqueeze(-2)",
    )


def lengths_of_the_first_drafts() -> Dsv41Target:
    """Scores of a request's drafts are planned for other rows than they are made for."""
    return _elsewhere(
        "target_verify",
        f"{_SCORING}:DeepGEMMDecodeData",
        "paged_logits_args",
        "lens = lens.view(-1, n)",
        "lens = lens.view(n, -1).T.contiguous()",
    )


def pages_of_the_first_rows() -> Dsv41Target:
    """A request's drafts are scored by pages of the row with its number among all drafts."""
    return _elsewhere(
        "target_verify",
        f"{_SCORING}:DeepGEMMDecodeData",
        "paged_logits_args",
        "table = table[::n]",
        "table = table[: len(lens)]",
    )


def requests_in_another_order() -> Dsv41Target:
    """Drafts are taken for those of all requests by turns."""
    return _elsewhere(
        "target_verify",
        _BACKEND,
        "token_req_indices",
        "req, int(forward_batch.spec_info.draft_token_num), output_size=num_tokens",
        "req.repeat(int(forward_batch.spec_info.draft_token_num)), 1, output_size=num_tokens",
    )


def drafts_of_the_ring() -> Dsv41Target:
    """Each draft looks its pair up in the ring, where none of the others is yet."""
    return _line(
        "target_verify",
        "_low_ratio_compress",
        "draft_len=self.speculative_num_draft_tokens",
        "draft_len=1",
    )
