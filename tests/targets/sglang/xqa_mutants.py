"""Planted bugs of sglang's mask of drafts for XQA; targets opened by name in a worker."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession
from fuzzgraph.targets.sglang.backends.trtllm_mha import TRTLLM_MHA
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from tests.targets.sglang.changed_lines import change_line, changed_method
from tests.targets.sglang.planted import PlantedBackend


class _Changed(BackendSession):
    """One line of a method of `TRTLLMHAAttnBackend` is another one."""

    changed: tuple[str, str, str]

    def _open_backend(self, runner: ModelRunner) -> Any:
        backend = super()._open_backend(runner)
        method, line, other = self.changed
        if method == "__init__":
            changed_method(type(backend), method, line, other)(backend, runner)
        else:
            change_line(backend, method, line, other)
        return backend


def _planted(method: str, line: str, other: str) -> PlantedBackend:
    session = type("Changed", (_Changed,), {"changed": (method, line, other)})
    return PlantedBackend(session, TRTLLM_MHA, "target_verify", name="trtllm-mha-verify")


_BITS = "bits = (row + 1 - 16 * word).clamp(0, 16)"


def sees_no_self() -> PlantedBackend:
    """A draft sees those before it alone."""
    return _planted("__init__", _BITS, "bits = (row - 16 * word).clamp(0, 16)")


def sees_the_next() -> PlantedBackend:
    """A draft sees the one behind it too."""
    return _planted("__init__", _BITS, "bits = (row + 2 - 16 * word).clamp(0, 16)")


def sees_all() -> PlantedBackend:
    """Every draft sees all of its row."""
    return _planted("__init__", _BITS, "bits = (row + 16 - 16 * word).clamp(0, 16)")


def one_mask_too_few() -> PlantedBackend:
    """The last row of a batch has no mask."""
    line = "mask[: group_seq_lens.shape[0]]"
    return _planted("_run_fixed_q_len_decode", line, "mask[: group_seq_lens.shape[0] - 1]")


def masks_of_all_rows() -> PlantedBackend:
    """A batch gets the masks of as many rows as there may be."""
    return _planted("_run_fixed_q_len_decode", "mask[: group_seq_lens.shape[0]]", "mask")


def no_mask() -> PlantedBackend:
    """A verify hands over no mask."""
    line = "if self.forward_metadata.max_seq_len_q > 1"
    return _planted("forward_extend", line, "if self.forward_metadata.max_seq_len_q < 1")


def converted_queries() -> PlantedBackend:
    """Queries are in FP8 where keys are, which XQA does not take."""
    line = "and (not self.is_xqa_impl or not uses_decode_kernel)"
    return _planted("forward_extend", line, "and (not self.is_xqa_impl or uses_decode_kernel)")


def mask_of_every_width() -> PlantedBackend:
    """A row of one token gets a mask too, which XQA does not read there."""
    return _planted("forward_extend", "mask=mask,", "mask=self._xqa_spec_dec_mask,")
