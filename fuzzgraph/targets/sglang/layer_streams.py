"""What DeepSeek V4's layer computes before it attends, on streams of its own.

The engine's own `MQALayer._forward_prepare_multi_stream` (sglang models/deepseek_v4.py), which
graphs hold by default: keys are written, the compressor and the indexer run on a stream each, and
the indexer gives its weights and its queries to two more.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from fuzzgraph.targets.offline.cuda_on_cpu import STREAMS
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.capturing import captures
from fuzzgraph.targets.sglang.release import engine_module, is_before

__all__ = ["LAYER", "LayerStreams"]

LAYER = "sglang.srt.models.deepseek_v4"
"""Module of the engine's layer."""
_STREAMS = 5
"""That a model has for all of its layers."""
_QUERIES_TWICE = (0, 5, 21)
"""The first release in which a query has a form of its own for its projection."""

_ASKED_FOR = ("Stream", "current_stream", "stream")
"""Names of torch.cuda by which the layer and its indexer give work to streams."""


class LayerStreams:
    """The streams of a model, and the layer that gives them work.

    Args:
        indexer: of the layer; None for one that has none. It is given its streams.
        compressor: likewise.
        indexer_kind: the engine's class.
    """

    def __init__(self, indexer: Any, compressor: Any, indexer_kind: Any) -> None:
        with _streams_on_cpu():
            self._streams = [torch.cuda.Stream() for _ in range(_STREAMS)]
        self._compressor, self._indexer = compressor, None
        if indexer is not None:
            indexer.alt_streams = self._streams[-2:]
            self._indexer = functools.partial(indexer_kind.forward, indexer)

    @property
    def used(self) -> bool:
        """Whether the engine's layer takes them now: while a graph is captured."""
        return captures()

    def prepare(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        backend: Any,
        *,
        q_lora: torch.Tensor | None,
        keys: torch.Tensor,
    ) -> None:
        """Write keys, compress them, and let the indexer select.

        Args:
            x: [tokens, columns] the input of compressor and indexer.
            q_lora: [tokens, columns] the input of the indexer's query.
            keys: [tokens, head_dim] of the window.
        """
        module: Any = engine_module(LAYER)
        rows = x if q_lora is None else q_lora
        layer = Stub(
            layer_id=0,
            alt_streams=self._streams[:3],
            fuse_wqa_wkv=False,
            indexer=self._indexer,
            compressor=self._compressor,
            _compute_q_a=lambda *_, **__: rows if is_before(_QUERIES_TWICE) else (rows, rows),
            _compute_q_b=lambda q, *_: q,
            _compute_kv_to_cache=lambda *_, **__: backend.store_cache(
                layer_id=0, swa_k=keys, forward_batch=forward_batch
            ),
        )
        with _streams_on_cpu():
            call_with_known(
                functools.partial(module.MQALayer._forward_prepare_multi_stream, layer),
                x=x,
                positions=positions,
                forward_batch=forward_batch,
                attn_backend=backend,
            )


def _streams_on_cpu() -> contextlib.AbstractContextManager[Any]:
    if torch.cuda.is_available():
        return contextlib.nullcontext()
    return replaced_names([torch.cuda], {name: STREAMS[name] for name in _ASKED_FOR})
