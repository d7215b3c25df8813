"""Cross attention that the graph does not hold."""

from __future__ import annotations

from dataclasses import replace

from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.metadata.builder import BuiltView, MetadataBuilder
from fuzzgraph.targets.builtin.metadata.kv_indices import KvView
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.speculation import DraftExtendRunner, VerifyRunner


class CapturedWithoutEncoder(GraphRunner):
    def capture_encoder_len(self) -> int:
        return 0


class VerifyWithoutEncoder(CapturedWithoutEncoder, VerifyRunner):
    """The same in verify."""


class DraftExtendWithoutEncoder(CapturedWithoutEncoder, DraftExtendRunner):
    """The same in draft_extend."""


class CrossLengthZero(MetadataBuilder):
    def cross_batch(self, view: BuiltView, encoder: KvView) -> AttentionBatch:
        return replace(super().cross_batch(view, encoder), max_kv_len=0)


FAULTS = (
    Fault(
        name="sglang-pr-21190-encoder-length-captured-as-zero",
        source="sglang PR 21190: encoder lengths are 0 at capture, so cross attention is left out",
        kind="encoder-decoder",
        clause="metadata",
        trigger="a graph of an encoder-decoder model",
        components=engine(
            decode=CapturedWithoutEncoder,
            verify=VerifyWithoutEncoder,
            draft_extend=DraftExtendWithoutEncoder,
        ),
    ),
    Fault(
        name="vllm-pr-33360-cross-length-overwritten",
        source="vLLM PR 33360: the cross-attention builder overwrites the longest length with 0",
        kind="encoder-decoder",
        clause="computes",
        trigger="a request with an encoder",
        components=engine(builder=CrossLengthZero),
    ),
)
