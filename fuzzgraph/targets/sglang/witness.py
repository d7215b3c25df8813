"""An attention backend that builds nothing and remembers what a runner handed it.

It stands in where the runner is the subject: padding and input buffers, not one backend's metadata.
What a runner hands over at a replay is what every backend would build its metadata from.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.targets.sglang.loading import engine_module

__all__ = ["HANDED", "witness"]

HANDED = ("req_pool_indices", "seq_lens", "seq_lens_cpu", "encoder_lens", "seq_lens_sum")


def witness(fill_value: int) -> Any:
    """A backend of this release's own kind.

    Args:
        fill_value: length of padded rows that it asks for.
    """
    base: Any = engine_module("sglang.srt.layers.attention.base_attn_backend").AttentionBackend

    class Witness(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.handed: dict[str, Any] = {}
            """Name -> what was handed over last: views of the runner's buffers, and numbers."""

        def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, **_: Any) -> None: ...

        def get_cuda_graph_seq_len_fill_value(self) -> int:
            return fill_value

        def init_cpu_graph_state(self, max_bs: int, max_num_tokens: int) -> None: ...

        def get_cpu_graph_seq_len_fill_value(self) -> int:
            return fill_value

        def init_forward_metadata_capture_cpu_graph(self, *_: Any, **__: Any) -> None: ...

        def init_forward_metadata(self, forward_batch: Any) -> None:
            self._take(forward_batch)

        def init_forward_metadata_out_graph(
            self, forward_batch: Any, in_capture: bool = False
        ) -> None:
            self._take(forward_batch)

        def init_forward_metadata_capture_cuda_graph(
            self, bs: int, num_tokens: int, req_pool_indices: Any, seq_lens: Any,
            encoder_lens: Any, forward_mode: Any, spec_info: Any,
        ) -> None:  # fmt: skip
            self.handed = {"req_pool_indices": req_pool_indices[:bs], "seq_lens": seq_lens[:bs]}

        def init_forward_metadata_replay_cuda_graph(
            self, bs: int, req_pool_indices: Any, seq_lens: Any, seq_lens_sum: Any,
            encoder_lens: Any, forward_mode: Any, spec_info: Any, seq_lens_cpu: Any = None,
            **_: Any,
        ) -> None:  # fmt: skip
            self.handed = {
                "req_pool_indices": req_pool_indices[:bs],
                "seq_lens": seq_lens[:bs],
                "seq_lens_sum": seq_lens_sum,
            }
            for name, value in (("encoder_lens", encoder_lens), ("seq_lens_cpu", seq_lens_cpu)):
                if value is not None:
                    self.handed[name] = value[:bs]

        def _take(self, forward_batch: Any) -> None:
            found = {name: getattr(forward_batch, name, None) for name in HANDED}
            self.handed = {name: value for name, value in found.items() if value is not None}

        def handed_tensors(self) -> dict[str, torch.Tensor]:
            """Copies; numbers as tensors of one."""
            return {
                name: value.clone() if isinstance(value, torch.Tensor) else torch.tensor([value])
                for name, value in self.handed.items()
            }

    return Witness()
