"""The model's forward cut into pieces at attention, without the compiler.

A server has its model traced by Dynamo; vLLM's backend splits the traced graph at attention, hands
the pieces to Inductor and wraps each in a graph wrapper of its own (compilation/backends.py,
PiecewiseCompileInterpreter). Here torch's tracer gives the graph, and the pieces run as they were
traced. Splitting, the operators at which it splits, and the wrappers are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from fuzzgraph.targets.vllm.attention_model import OneLayer
from fuzzgraph.targets.vllm.release import engine_module

_BACKENDS = "vllm.compilation.backends"
_CONTEXT = "vllm.forward_context"


def runs_in_pieces() -> bool:
    """Whether the engine captures or replays pieces in the present forward."""
    mode = engine_module(_CONTEXT).get_forward_context().cudagraph_runtime_mode
    return bool(mode.name == "PIECEWISE")


class SplitLayer(OneLayer):
    """`OneLayer` as the compiler's backend leaves it: pieces, and attention between them."""

    architecture = f"{OneLayer.architecture}Split"

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._split = SplitForward(super().forward, vllm_config)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *_: Any, **__: Any) -> Any:
        if not runs_in_pieces():  # wrappers of pieces hand such a call through
            return super().forward(input_ids, positions)
        return self._split(input_ids, positions)


class CalledDirectly(OneLayer):
    """`OneLayer` whose attention is a call of Python, as on platforms without opaque operators.

    A capture ends and begins inside of it, where torch has put aside who watches its functions.
    """

    architecture = f"{OneLayer.architecture}CalledDirectly"

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.attn.use_direct_call = True


class SplitForward:
    """A forward as its pieces; one graph wrapper for each, whatever the number of tokens.

    Args:
        forward: of token ids, int [tokens], and tensors that have a row for each of them.
    """

    def __init__(self, forward: Callable[..., Any], vllm_config: Any) -> None:
        self._forward = forward
        self._vllm_config = vllm_config
        self._split: dict[int, Any] = {}
        self._pieces: list[_Piece] = []

    def __call__(self, input_ids: torch.Tensor, *inputs: torch.Tensor) -> Any:
        tokens = len(input_ids)
        if tokens not in self._split:
            self._split[tokens] = self._trace(input_ids, *inputs)
        return self._split[tokens](input_ids, *inputs)

    def _trace(self, *inputs: torch.Tensor) -> Any:
        """The forward over as many tokens, split, with its pieces wrapped."""
        module, tokens = engine_module(_BACKENDS), len(inputs[0])

        def forward(*inputs: torch.Tensor) -> Any:
            return self._forward(*inputs)

        # Nothing is computed, as when the compiler traces; who watches the memory would be traced.
        tracer = make_fx(forward, tracing_mode="fake", _allow_non_fake_inputs=True)
        with _disable_current_modes():
            traced = tracer(*inputs)
        config = self._vllm_config.compilation_config
        split, items = module.split_graph(traced, config.splitting_ops)
        names = [item.submod_name for item in items if not item.is_splitting_graph]
        for index, name in enumerate(names):
            if index == len(self._pieces):
                last = index == len(names) - 1
                self._pieces.append(_Piece(module, self._vllm_config, index == 0, last))
            piece = self._pieces[index]
            piece.traced[tokens] = getattr(split, name)
            split.__dict__[name] = piece.of(tokens)
        return split


class _Piece:
    """One piece in the engine's wrapper, which picks the graph by the batch's descriptor."""

    def __init__(self, module: Any, vllm_config: Any, first: bool, last: bool) -> None:
        self.traced: dict[int, Any] = {}
        self._tokens = 0
        config = vllm_config.compilation_config
        self._wrapped = module.wrap_with_cudagraph_if_needed(
            self._run, vllm_config, config, first, last
        )

    def of(self, tokens: int) -> Callable[..., Any]:
        """The piece over so many tokens, as the split forward calls it."""

        def call(*args: Any) -> Any:
            self._tokens = tokens
            return self._wrapped(*args)

        return call

    def _run(self, *args: Any) -> Any:
        return self.traced[self._tokens](*args)
