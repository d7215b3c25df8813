"""Real FlashInfer, from a released wheel, behind the ports: its wrappers with CUDA graphs.

Nothing here imports FlashInfer when it is imported; `release` does so when a target opens.
README.md has a table of what is driven.
"""

from __future__ import annotations

from fuzzgraph.targets.entry import TargetEntry

__all__ = ["TARGETS"]


def _row(name: str, wrapper: str, mode: str) -> TargetEntry:
    arguments = {"wrapper": wrapper, "mode": mode}
    return TargetEntry(
        f"flashinfer-{name}", "flashinfer.target", "WrapperTarget", arguments, "0.6.3 on"
    )


TARGETS = (
    _row("decode", "decode", "decode"),
    _row("decode-tensor-cores", "decode_tensor_cores", "decode"),
    _row("decode-trtllm-gen", "decode_trtllm_gen", "decode"),
    _row("decode-verify", "decode_verify", "target_verify"),
    _row("mla", "mla", "decode"),
    _row("mla-verify", "mla", "target_verify"),
    _row("prefill", "prefill", "target_verify"),
    _row("prefill-max-len", "prefill_max_len", "target_verify"),
    _row("prefill-mask-buffers", "prefill_mask_buffers", "target_verify"),
    _row("prefill-packed-mask", "prefill_packed_mask", "target_verify"),
)
