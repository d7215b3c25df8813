"""The metadata objects that the forward dereferences: raw ones and full ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fuzzgraph.targets.builtin.attention import AttentionBatch


@dataclass(slots=True)
class RawMetadata:
    """What the scheduler knows; the attention needs more."""

    request_rows: torch.Tensor
    seq_lens: torch.Tensor
    new_lens: torch.Tensor | None = None


@dataclass(slots=True)
class FullMetadata:
    """What the attention reads, as views of static buffers."""

    attention: tuple[AttentionBatch, ...]
    """One launch, or one per draft step."""
    cross: AttentionBatch | None = None
    """The launch over the encoder's tokens."""
    fields: dict[str, torch.Tensor] = field(default_factory=dict)
    """The same buffers by the names under which they are declared."""
