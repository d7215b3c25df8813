"""What is seen of a runner from outside: copies of what a step used, and what a capture saw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.handover import Handover, as_it_is, part_of
from fuzzgraph.observation import Observation
from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.metadata.views import BuiltView
from fuzzgraph.targets.builtin.runners.context import Outputs, Step
from fuzzgraph.targets.builtin.second_layer import SECOND, prefixed
from fuzzgraph.world import Batch


def observation_of(
    batch: Batch,
    step: Step,
    outputs: Outputs,
    config: EngineConfig,
    frozen: tuple[AttentionBatch, ...],
) -> Observation:
    """Copies of outputs and of the used part of all metadata.

    Args:
        frozen: launches that the graph of the step was captured with; () where it took none.
    """
    return Observation(
        batch.raw_bs,
        step.padded.rows,
        batch.num_tokens,
        step.padded.tokens,
        outputs={name: output.clone() for name, output in outputs.items()},
        metadata=_used_metadata(step),
        plan=_plan(step, config),
        types=_metadata_types(step, config),
        handovers=_launches(step, frozen),
    )


def _launches(step: Step, frozen: tuple[AttentionBatch, ...]) -> tuple[Handover, ...]:
    """The launch of each layer; there is none without rows."""
    views = [step.view] if step.second is None else [step.view, step.second.view]
    names = ("paged_attention", f"{SECOND}paged_attention")
    return tuple(
        launch_of(name, frozen[at] if frozen else view.full.attention[0])
        for at, (name, view) in enumerate(zip(names, views, strict=False))
        if view.full.attention
    )


def launch_of(kernel: str, batch: AttentionBatch) -> Handover:
    """What the kernel of self-attention is given for each row; what these cut is declared."""
    taken = Handover(kernel, "kernel")
    numbers = ("max_kv_len", "max_q_len", "scale", "window", "causal")
    taken.scalars = {name: getattr(batch, name) for name in numbers}
    with as_it_is():
        for name in ("kv_lens", "qo_indptr", "kv_indptr", "mask_indptr", "page_table"):
            tensor: torch.Tensor | None = getattr(batch, name)
            if tensor is not None:
                taken.tensors[name] = part_of(tensor)
    return taken


def _used_metadata(step: Step) -> dict[str, torch.Tensor]:
    """Inputs of the padded batch, and what lies below the last offset."""
    registry, padded = step.static.registry, step.padded
    found = {name: registry.view(name, padded).clone() for name in registry.slots}
    found |= _used_fields(step.view)
    return found | (prefixed(_used_fields(step.second.view)) if step.second is not None else {})


def _used_fields(view: BuiltView) -> dict[str, torch.Tensor]:
    found, fields = {}, view.full.fields
    for name, tensor in fields.items():
        offsets = fields.get(_offsets_of(name))
        used = tensor if offsets is None else tensor[: offsets[-1]]
        found[name] = used.clone()
    return found


_OFFSETS = {
    "custom_mask": "mask_indptr",
    "plan_tokens": "merge_indptr",
    "plan_chunks": "merge_indptr",
}


@cache
def _offsets_of(name: str) -> str:
    """Field that says how much of field `name` is used; '' where all of it is."""
    if "_indices" in name:
        return name.replace("_indices", "_indptr")
    stem, _, suffix = name.partition("@")
    offsets = _OFFSETS.get(stem, "")
    return f"{offsets}@{suffix}" if suffix else offsets


def _plan(step: Step, config: EngineConfig) -> dict[str, object]:
    """Frozen numbers that select how the kernel sums."""
    launch = step.view.full.attention[0]
    plan: dict[str, object] = {"max_kv_len": launch.max_kv_len, "split_kv": config.split_kv}
    if launch.kv_lens.device.type != "cpu" and config.kernels == "torch":
        plan["tokens"] = step.padded.tokens  # a device's matmul may choose its kernel by this
    return plan


def _metadata_types(step: Step, config: EngineConfig) -> dict[str, str]:
    raw = config.metadata != "full" and step.static.builder.upgrades_in_graph()
    needed = RawMetadata if raw else FullMetadata
    return {
        "forward_metadata": type(step.metadata).__name__,
        "forward_metadata.needed": needed.__name__,
    }


@dataclass(frozen=True)
class CaptureRecord:
    """What a graph saw when it was captured, to compare with what replays show it."""

    values: dict[str, torch.Tensor]
    addresses: dict[str, int]
    launches: tuple[AttentionBatch, ...]
    """What its kernels were given, layer by layer: frozen records, whose tensors keep their
    memory."""

    @classmethod
    def of(cls, step: Step) -> CaptureRecord:
        """Inputs whose values a capture must get right, and the address of every buffer."""
        static, extent = step.static, step.padded
        values = {}
        for name in ("num_token_non_padded", "rank_tokens", "seq_lens", "encoder_lens"):
            value = static.registry.find(name, extent)
            if value is not None:
                values[name] = value.clone()
        addresses = {name: tensor.data_ptr() for name, tensor in static.buffers().items()}
        views = [step.view] if step.second is None else [step.view, step.second.view]
        launches = (launch for view in views for launch in view.full.attention[:1])
        return cls(values, addresses, tuple(launches))
