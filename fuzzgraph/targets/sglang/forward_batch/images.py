"""What a prefill brings of images: embeddings, ids in their place, positions in three rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.case.images import image_tokens
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch, IntArray

_SCHEDULE = "sglang.srt.managers.schedule_batch"
_FIRST_ID = 1_000_000
"""Ids in the place of images begin here, beyond any vocabulary (MM_PAD_SHIFT_VALUE)."""


def image_inputs(batch: Batch, runner: ModelRunner) -> dict[str, Any]:
    """Values of the forward batch of a model that takes images.

    An image's embeddings are those of the tokens that the case has in its place. They were worked
    out before (`precomputed_embeddings`), so that no encoder runs.
    """
    config = runner.configuration.config
    lens = np.array(
        [image_tokens(config, name) for name in batch.requests.tolist()], dtype=np.int64
    )
    inputs = [
        _image(batch, row, int(length), runner) if length else None
        for row, length in enumerate(lens)
    ]
    ids = np.where(
        batch.positions < lens[batch.token_rows], _ids_of(batch)[batch.token_rows], batch.input_ids
    )
    assert batch.mrope is not None
    rows = np.stack((batch.positions, batch.mrope, batch.mrope))
    return {
        "input_ids": torch.tensor(ids, device=runner.device),
        "mrope_positions": torch.tensor(rows, device=runner.device),
        "mm_inputs": inputs,
    }


def _ids_of(batch: Batch) -> IntArray:
    """The id in the place of each row's image, as from a hash of it."""
    return _FIRST_ID + batch.requests


def _image(batch: Batch, row: int, length: int, runner: ModelRunner) -> Any:
    module = engine_module(_SCHEDULE)
    embed = runner.model.model.attention.embed
    tokens = torch.tensor(batch.prompts.row(row)[:length], device=runner.device)
    found = embed[tokens]
    if len(found) < length:  # of a prompt that this case does not have whole
        found = torch.cat((found, found[-1:].expand(length - len(found), -1)))
    item = module.MultimodalDataItem(
        modality=module.Modality.IMAGE,
        hash=int(_ids_of(batch)[row]),
        pad_value=int(_ids_of(batch)[row]),
        offsets=[(0, length - 1)],
        precomputed_embeddings=found,
    )
    return call_with_known(module.MultimodalInputs, mm_items=[item])
