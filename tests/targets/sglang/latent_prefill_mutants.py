"""Full prefill graphs of latent attention whose engine has one line changed; opened by name.

What is changed is what asks for logsumexps, stores them, hands them on and merges by them, and what
says which keys a chunk of a past has.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.targets.sglang.runners.latent_prefill import (
    LatentPrefillSession,
    LatentPrefillTarget,
)
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner"
_MERGES = "sglang.srt.models.deepseek_common.attention_forward_methods.forward_mha"
Plant = Callable[[LatentPrefillSession], None]


def _planted(plant: Plant) -> LatentPrefillTarget:
    return with_changed_sessions(LatentPrefillTarget("sglang-full-prefill-mla"), plant)


def _changed(holder: str, name: str, line: str, other: str = "pass") -> LatentPrefillTarget:
    """Before graphs are captured, and in runs without one too."""
    return _planted(lambda session: change_line_elsewhere(session, holder, name, line, other))


def _in_backend(line: str, other: str) -> LatentPrefillTarget:
    return _planted(lambda session: change_line(session.backend, "forward_extend", line, other))


def _in_runner(name: str, line: str, other: str = "pass") -> LatentPrefillTarget:
    return _changed(f"{_RUNNER}:PrefillCudaGraphRunner", name, line, other)


def _in_merges(line: str, other: str = "pass") -> LatentPrefillTarget:
    mixin = f"{_MERGES}:DeepseekMHAForwardMixin"
    return _changed(mixin, "_chunked_prefix_attn_mha", line, other)


def stores_sums_by_head() -> LatentPrefillTarget:
    """Logsumexps are handed on as the kernel has them, heads first, under the other shape."""
    line = "lse = torch.transpose(lse, 0, 1).contiguous()"
    return _in_backend(line, "lse = lse.reshape(lse.shape[::-1])")


def attends_to_the_first_chunk() -> LatentPrefillTarget:
    """Every chunk has as many keys as the first."""
    line = "forward_batch.prefix_chunk_cu_seq_lens[chunk_idx]"
    other = "forward_batch.prefix_chunk_cu_seq_lens[0]"
    return _in_backend(line, other)


def hands_on_no_sums() -> LatentPrefillTarget:
    """The backend gives zeros for logsumexps."""
    return _in_backend("return output, lse", "return output, torch.zeros_like(lse)")


def keeps_the_first_sums() -> LatentPrefillTarget:
    """Outputs are merged by the logsumexp of the new tokens alone."""
    return _in_merges("accum_output, accum_lse = tmp_output, tmp_lse", "accum_output = tmp_output")


def merges_nothing() -> LatentPrefillTarget:
    """The last chunk takes the place of what was merged before."""
    return _in_merges(
        "accum_output, accum_lse = tmp_output, tmp_lse", "accum_output, accum_lse = output, lse"
    )


def takes_keys_for_values() -> LatentPrefillTarget:
    """Of an expanded chunk the part that is a key becomes the value."""
    return _in_merges("k[..., : self.qk_nope_head_dim] = k_nope", "v = k_nope")


def leaves_the_last_chunk_out() -> LatentPrefillTarget:
    """Slots of the last chunk of a past are not listed."""
    return _in_runner(
        "_populate_chunked_prefix_buffers", "for chunk_idx in range(real_n):",
        "for chunk_idx in range(real_n - 1):",
    )  # fmt: skip


def keeps_chunk_lengths() -> LatentPrefillTarget:
    """Chunks have as many keys as at capture."""

    def plant(session: LatentPrefillSession) -> None:
        capture = session.capture

        def then() -> None:
            capture()
            change_line_elsewhere(
                session, f"{_RUNNER}:PrefillCudaGraphRunner", "_populate_chunked_prefix_buffers",
                "buffers.cu_seq_lens[:captured_n].copy_(cu_seq_lens)", "pass",
            )  # fmt: skip

        session.capture = then  # type: ignore[method-assign]

    return _planted(plant)


def takes_too_few_chunks() -> LatentPrefillTarget:
    """A past that ends inside of a chunk takes a graph without that chunk."""
    return _in_runner(
        "_select_prefix_capture_chunks", "_ceil_div(max_prefix_len, self._prefix_chunk_len)",
        "max(1, max_prefix_len // self._prefix_chunk_len)",
    )  # fmt: skip


def lists_every_chunk_from_the_start() -> LatentPrefillTarget:
    """The Triton kernel that lists slots does not begin where the chunk does."""
    name = "create_chunked_prefix_cache_kv_indices"
    line = "            + chunk_start_pos\n"
    return _planted(lambda session: change_kernel(session, _RUNNER, name, line, ""))
