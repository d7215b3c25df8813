"""What stands behind attention in a draft model: exact, and each token's own."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.content import DTYPES, content_for, hidden_width, next_token
from fuzzgraph.draft_head import LOGITS, head_weight, next_hidden
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected
from fuzzgraph.world import VOCAB, Batch

HEADS, COLUMNS = 4, 16
WIDTH = HEADS * COLUMNS


def config_of(**settings: object) -> EngineConfig:
    sizes = {"num_q_heads": HEADS, "head_dim": COLUMNS, "v_head_dim": COLUMNS}
    return EngineConfig(**{**sizes, **settings})  # type: ignore[arg-type]


def batch_of(config: EngineConfig, *accepted: int) -> Batch:
    """One step with rows of 9 tokens; of mode draft without accepted ones."""
    drafts = config.modes == ("draft",)
    rows = tuple(
        BatchRow(request=row, seq_len=9, new_tokens=0 if drafts else new)
        for row, new in enumerate(accepted)
    )
    steps = (ReplayStep(mode=config.modes[0], rows=rows),)
    (batch,) = plan(validate(Case(schema_version=1, config=config, steps=steps)))
    return batch


def test_a_hidden_state_is_attention_the_front_of_the_one_given_and_a_mark() -> None:
    attended = torch.arange(2.0 * WIDTH).view(2, WIDTH)
    given = -torch.arange(2.0 * hidden_width(config_of())).view(2, -1)
    hidden = next_hidden(attended, given, torch.tensor([3, 0]))
    assert torch.equal(hidden[:, :WIDTH], attended)
    assert torch.equal(hidden[:, WIDTH : 2 * WIDTH], given[:, :WIDTH])
    assert hidden[:, 2 * WIDTH :].nonzero().tolist() == [[0, 3], [1, 0]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_logits_are_columns_of_the_hidden_state_in_every_dtype(dtype: str) -> None:
    config = config_of(dtype=dtype)
    typed = DTYPES[dtype]
    content = content_for(config)
    ids = torch.arange(VOCAB)
    hidden = next_hidden(content.hidden_table[:, :WIDTH], content.hidden_table, ids.flip(0))
    logits = hidden @ head_weight(config, typed).T
    assert logits.shape == (VOCAB, LOGITS)
    assert torch.equal(logits.argmax(1), ids.flip(0))
    picked = {value for row in hidden.tolist() for value in row}
    assert set(logits.flatten().tolist()) <= picked


def test_hidden_states_of_neighbours_differ() -> None:
    content = content_for(config_of())
    tokens, positions = torch.tensor([3, 3, 4]), torch.tensor([5, 6, 5])
    first, later, other = content.hidden_states(tokens, positions)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)


def test_an_extend_is_sampled_from_the_last_accepted_token_of_each_row_that_has_one() -> None:
    config = config_of(modes=("draft_extend",), draft_tokens=3)
    batch = batch_of(config, 2, 0, 3)
    truth = expected(batch, config).outputs
    last = [1, 4]
    tokens = torch.from_numpy(batch.input_ids)[last]
    assert torch.equal(truth["topk_index"][:, 0], next_token(tokens, 0, 0))
    assert torch.equal(truth["hidden_states"][:, :WIDTH], truth["attention"][last].flatten(1))
    assert torch.equal(truth["next_token_logits"].argmax(1), next_token(tokens, 0, 0))
    again = next_token(next_token(tokens, 0, 0), 0, 0)
    assert torch.equal(truth["chained_tokens"][:, 1], again)


def test_each_step_of_a_draft_takes_the_hidden_state_of_the_one_before() -> None:
    config = config_of(modes=("draft",), spec_steps=3)
    batch = batch_of(config, 0, 0)
    truth = expected(batch, config).outputs
    hidden = truth["hidden_states"].view(2, 3, -1)
    attention = truth["attention"].view(2, 3, WIDTH)
    assert torch.equal(hidden[:, :, :WIDTH], attention)
    assert torch.equal(hidden[:, 1:, WIDTH : 2 * WIDTH], attention[:, :-1])
    marks = hidden[:, :, 2 * WIDTH :].argmax(2)
    assert torch.equal(marks.flatten(), truth["draft_tokens"])


def test_branches_that_share_a_row_have_no_truth_behind_attention() -> None:
    config = config_of(modes=("draft",), spec_steps=2, spec_topk=2)
    assert "hidden_states" not in expected(batch_of(config, 0), config).outputs
