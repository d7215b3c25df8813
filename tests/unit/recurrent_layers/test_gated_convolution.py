"""The truth of a short convolution between two gates, against its definition by sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import Content, content_for
from fuzzgraph.layout import plan
from fuzzgraph.recurrent_layers.gated_convolution import (
    GATED_COLUMNS,
    GATED_TAPS,
    gated_conv_outputs,
    gated_conv_rows,
    gates_before,
    gates_behind,
    tap_weights,
    values_between,
)
from fuzzgraph.world import VOCAB, Batch

CONFIG = EngineConfig(recurrent_state=True, capture_bs=(4,))


def batch_of(*lengths: int) -> Batch:
    rows = tuple(BatchRow(request=name, seq_len=length) for name, length in enumerate(lengths))
    (batch,) = plan(Case(schema_version=1, config=CONFIG, steps=(ReplayStep(rows=rows),)))
    return batch


def by_definition(content: Content, tokens: list[int]) -> tuple[list[list[float]], list[float]]:
    """(inputs of the last two tokens, output of the last one), number by number."""
    before, behind, x = gates_before(), gates_behind(), values_between(content)
    taps = tap_weights()
    gated = [[float(before[t, c] * x[t, c]) for c in range(GATED_COLUMNS)] for t in tokens]
    gated = [[0.0] * GATED_COLUMNS] * GATED_TAPS + gated
    last = gated[-GATED_TAPS:]
    out = [
        float(behind[tokens[-1], column])
        * sum(float(taps[column, tap]) * last[tap][column] for tap in range(GATED_TAPS))
        for column in range(GATED_COLUMNS)
    ]
    return last[1:], out


@pytest.mark.parametrize("lengths", [(1, 5, 2, 16), (3, 4)])
def test_inputs_and_outputs_are_those_of_the_definition(lengths: tuple[int, ...]) -> None:
    batch, content = batch_of(*lengths), content_for(CONFIG)
    kept = gated_conv_rows(content, batch, np.arange(len(lengths)), batch.seq_lens)
    outputs = gated_conv_outputs(content, batch, torch.float64)
    for row in range(len(lengths)):
        inputs, out = by_definition(content, batch.kv_tokens.row(row).tolist())
        assert kept[row].tolist() == inputs
        assert outputs[row].tolist() == out


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_half_precision_holds_inputs_and_outputs_as_they_are(dtype: torch.dtype) -> None:
    batch, content = batch_of(16, 15, 7, 1), content_for(CONFIG)
    kept = gated_conv_rows(content, batch, np.arange(4), batch.seq_lens)
    assert torch.equal(kept.to(dtype).float(), kept)
    outputs = gated_conv_outputs(content, batch, torch.float64)
    assert torch.equal(gated_conv_outputs(content, batch, dtype).double(), outputs)


@pytest.mark.parametrize("ago", range(GATED_TAPS))
def test_an_output_shows_another_token_in_the_place_of_one_that_it_sees(ago: int) -> None:
    content, tokens = content_for(CONFIG), batch_of(12).kv_tokens.row(0).tolist()
    _, out = by_definition(content, tokens)
    for more in range(1, VOCAB):
        other = tokens.copy()
        other[-1 - ago] = (other[-1 - ago] + more) % VOCAB
        assert by_definition(content, other)[1] != out, more


def test_columns_and_taps_differ() -> None:
    weights = tap_weights()
    assert all(len(set(each.tolist())) == GATED_TAPS for each in weights)
    assert len({tuple(each.tolist()) for each in weights}) > 1
