"""Attention backends that take down what a runner hands them.

They are used where the runner is under test: its padding and its input buffers. Every backend
builds its metadata from what a runner hands over before a replay. One of them builds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuzzgraph.targets.sglang.release import engine_module

_CAPTURED = ("bs", "num_tokens", "req_pool_indices", "seq_lens")
_REPLAYED = ("bs", "req_pool_indices", "seq_lens", "seq_lens_sum", "encoder_lens", "forward_mode",
             "spec_info", "seq_lens_cpu")  # fmt: skip
HANDED = ("req_pool_indices", "seq_lens", "seq_lens_cpu", "encoder_lens", "seq_lens_sum")


class Handed:
    """What a runner handed its backend over; a part of backends of the release's own kind."""

    attn_backends: list[Any]

    def watch(self) -> None:
        """Begin to take down."""
        self.handed: dict[str, Any] = {}
        """Name -> what was handed over last: views of the runner's buffers, and numbers."""
        self._is_of_run = True
        self.on_metadata: Callable[[], None] = lambda: None
        """Called when something is handed over: inputs are filled, nothing has run yet."""

    def forget_handed(self) -> None:
        """Before a run, in which nothing may be handed over: graphs may prepare for themselves."""
        self._is_of_run = False

    def passed_on(self, name: str, *args: Any, **named: Any) -> None:
        """What a backend that computes does with it."""

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self._take(forward_batch)
        self.passed_on("init_forward_metadata", forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self._take(forward_batch)
        self.passed_on("init_forward_metadata_out_graph", forward_batch, in_capture=in_capture)

    def init_forward_metadata_capture_cuda_graph(self, *args: Any, **named: Any) -> None:
        """A backend of one step gets arguments, one of several steps a forward batch."""
        if args and not isinstance(args[0], int):
            self._take(args[0])
        else:
            self._keep({**dict(zip(_CAPTURED, args, strict=False)), **named})
        self.passed_on("init_forward_metadata_capture_cuda_graph", *args, **named)

    def init_forward_metadata_replay_cuda_graph(self, *args: Any, **named: Any) -> None:
        if args and not isinstance(args[0], int):
            self._take(args[0])
        else:
            self._keep({**dict(zip(_REPLAYED, args, strict=False)), **named})
        self.passed_on("init_forward_metadata_replay_cuda_graph", *args, **named)

    def take_padded(self, forward_batch: Any, seq_lens_sum: Any) -> None:
        """What a worker hands on for its backend, with a sum of its own."""
        self._take(forward_batch)
        self._keep({**self.handed, "seq_lens_sum": seq_lens_sum})

    def _take(self, forward_batch: Any) -> None:
        self._keep({name: getattr(forward_batch, name, None) for name in HANDED})

    def _keep(self, given: Mapping[str, Any]) -> None:
        """As handed over: backends take the number of rows from these sizes."""
        self.on_metadata()
        self._is_of_run = True
        self.handed = {name: given[name] for name in HANDED if given.get(name) is not None}

    def handed_tensors(self) -> dict[str, torch.Tensor]:
        """Copies; numbers as tensors of one."""
        if not self._is_of_run:
            return {}
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else torch.tensor([value])
            for name, value in self.handed.items()
        }


def recording_backend(fill_value: int) -> Any:
    """A backend of this release's own kind that computes nothing.

    Args:
        fill_value: length of padded rows that it asks for.
    """
    base: Any = engine_module("sglang.srt.layers.attention.base_attn_backend").AttentionBackend

    class RecordingBackend(Handed, base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.watch()
            self.attn_backends = [self]
            """As a backend of several draft steps has one for each."""

        def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, **_: Any) -> None: ...

        def get_cuda_graph_seq_len_fill_value(self) -> int:
            return fill_value

        def init_cpu_graph_state(self, max_bs: int, max_num_tokens: int) -> None: ...

        def get_cpu_graph_seq_len_fill_value(self) -> int:
            return fill_value

        get_graph_seq_len_fill_value = get_cpu_graph_seq_len_fill_value  # in 0.5.9

        def init_forward_metadata_capture_cpu_graph(self, *_: Any, **__: Any) -> None: ...

    return RecordingBackend()


def watched(backend: type) -> type:
    """The engine's class of a backend, which computes as it does and takes down what it is handed.

    Args:
        backend: the class.
    """

    class Watched(Handed, backend):  # type: ignore[misc]
        def __init__(self, *args: Any, **named: Any) -> None:
            self.watch()
            super().__init__(*args, **named)

        def passed_on(self, name: str, *args: Any, **named: Any) -> None:
            getattr(super(Handed, self), name)(*args, **named)

    return Watched
