"""EAGLE's draft-extend without a graph, beside other ranks, with one line of its padding changed.

Opened by name. The lines are those of sglang 0.5.23 forward_batch_info.py.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.draft_extend import DraftExtendTarget
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftTarget
from tests.targets.sglang.changed_lines import changed_method, replace_while_running
from tests.targets.sglang.planted import with_changed_sessions

_INFO = "sglang.srt.model_executor.forward_batch_info"


def _target(backend: str = "") -> Any:
    if backend:
        return DraftExtendTarget(f"sglang-{backend}-draft-extend", backend)
    return DraftTarget("sglang-eagle-draft-extend", "draft_extend")


def _changed(line: str, other: str, backend: str = "", method: str = "_pad_inputs_to_size") -> Any:
    """The target on a batch whose method has another line."""

    def change(session: Any) -> None:
        batches = engine_module(_INFO).ForwardBatch

        def changed(_: Any) -> Any:
            return changed_method(batches, method, line, other)

        replace_while_running(session, batches, method, changed)

    return with_changed_sessions(_target(backend), change)


def new_tokens_of_no_row() -> Any:
    """Line 2080: rows that pad have no new tokens, as up to 0.5.18."""
    return _changed("bs, value=dummy_extend_len", "bs, value=0")


def new_tokens_of_one_less() -> Any:
    """Line 2077: rows that pad have a token less than the others."""
    width = "dummy_extend_len = self.spec_info.num_tokens_per_req"
    return _changed(width, f"{width} - 1")


def past_of_a_token() -> Any:
    """Line 2084: rows that pad have a token before their new ones."""
    return _changed("self.extend_prefix_lens, bs\n", "self.extend_prefix_lens, bs, value=1\n")


def hosts_new_tokens_of_no_row() -> Any:
    """Line 2090: the host is told that rows that pad have no new tokens."""
    line = "self.extend_seq_lens_cpu + [dummy_extend_len] * ("
    return _changed(line, "self.extend_seq_lens_cpu + [0] * (")


def hosts_new_tokens_of_a_row_less() -> Any:
    """Line 2091: the host is told of a row less than there are."""
    line = "bs - len(self.extend_seq_lens_cpu)"
    return _changed(line, f"{line} - 1")


def hosts_past_dropped() -> Any:
    """Line 2094: the host is told of the past of the batch's own rows alone."""
    line = "self.extend_prefix_lens_cpu + [0] * ("
    return _changed(line, "self.extend_prefix_lens_cpu + [] * (")


def plan_grows() -> Any:
    """Line 2090: the list that a plan holds grows with the batch, as from 0.5.19 to 0.5.22."""
    line = "self.extend_seq_lens_cpu = self.extend_seq_lens_cpu + [dummy_extend_len] * ("
    return _changed(line, "self.extend_seq_lens_cpu += [dummy_extend_len] * (", "nsa")


def writes_to_a_slot_of_nobody() -> Any:
    """Tokens that pad are written to slot 1."""
    line = "self._pad_tensor_to_size(self.out_cache_loc, num_tokens)"
    return _changed(line, f"{line[:-1]}, value=1)")


def lengths_without_padding() -> Any:
    """Rows that pad have no keys, where the backend asks for one."""
    line = "self.seq_lens, bs, value=seq_len_fill_value\n"
    return _changed(line, "self.seq_lens, bs\n")


_CUT = "post_forward_mlp_sync_batch"


def rows_that_pad_come_back() -> Any:
    """What the forward made of rows that pad is handed to the worker."""
    return _changed("self.batch_size = self._original_batch_size", "pass", method=_CUT)


def comes_back_by_rows() -> Any:
    """A row of outputs comes back for each row of the batch, not for each of its tokens."""
    return _changed("bs = bs * self.spec_info.num_tokens_per_req", "pass", method=_CUT)


def logits_of_padding() -> Any:
    """Each forward's logits begin with those of the row behind the batch's own."""

    def change(session: Any) -> None:
        batches = engine_module(_INFO).ForwardBatch

        def shifted(cut: Any) -> Any:
            def late(batch: Any, outputs: Any) -> None:
                outputs.next_token_logits = outputs.next_token_logits.roll(1, 0)
                cut(batch, outputs)

            return late

        replace_while_running(session, batches, _CUT, shifted)

    return with_changed_sessions(_target(), change)


_PAD = "prepare_mlp_sync_batch"


def rows_for_each_token() -> Any:
    """Line 1943: a row for each token that pads, where a row has several."""
    line = "num_tokens // self.spec_info.num_tokens_per_req\n                )"
    return _changed(line, "num_tokens\n                )", method=_PAD)


def tokens_of_the_first_rank() -> Any:
    """Line 1833: the batch is padded to what the first rank has."""
    line = "global_num_tokens[dp_slot_in(global_num_tokens)]"
    return _changed(line, "global_num_tokens[0]", method=_PAD)
