"""`tree_speculative_sampling_target_only` and `top_k_renorm_probs`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.verify_sampling import (
    top_k_renorm_probs,
    tree_speculative_sampling_target_only,
)

_PARTS = (0.5, 0.25, 0.125, 0.125)


def _call(**changed: Any) -> dict[str, Any]:
    """One row: a root with token 3, and a chain of drafts 0 and 1 behind it."""
    given = {
        "predicts": torch.full((3,), -7, dtype=torch.int32),
        "accept_index": torch.full((1, 3), -7, dtype=torch.int32),
        "accept_token_num": torch.full((1,), -7, dtype=torch.int32),
        "candidates": torch.tensor([[3, 0, 1]]),
        "retrive_index": torch.tensor([[0, 1, 2]]),
        "retrive_next_token": torch.tensor([[1, 2, -1]]),
        "retrive_next_sibling": torch.full((1, 3), -1),
        "uniform_samples": torch.tensor([[0.4, 0.2, 0.0]]),
        "uniform_samples_for_final_sampling": torch.tensor([0.6]),
        "target_probs": torch.tensor(_PARTS).expand(1, 3, 4).contiguous(),
        "draft_probs": torch.zeros(1, 3, 4),
    }
    return {**given, **changed}


def test_drafts_stay_while_their_parts_are_above_the_numbers() -> None:
    given = _call()
    tree_speculative_sampling_target_only(**given)
    assert given["accept_token_num"].tolist() == [2]
    assert given["accept_index"].tolist() == [[0, 1, 2]]
    assert given["predicts"].tolist() == [0, 1, 1]  # 0.6 lies in the second part


def test_behind_a_rejected_draft_another_token_is_drawn() -> None:
    given = _call(uniform_samples=torch.tensor([[0.5, 0.0, 0.0]]))
    tree_speculative_sampling_target_only(**given)
    assert given["accept_token_num"].tolist() == [0]
    assert given["predicts"].tolist() == [2, -7, -7]  # of 1/4, 1/8 and 1/8
    assert given["draft_probs"][0, 0].tolist() == [0.5, 0.0, 0.0, 0.0]


def test_siblings_are_looked_at_with_their_parts_added_up() -> None:
    given = _call(
        candidates=torch.tensor([[3, 0, 1]]),
        retrive_next_token=torch.tensor([[1, -1, -1]]),
        retrive_next_sibling=torch.tensor([[-1, 2, -1]]),
        uniform_samples=torch.tensor([[0.7, 0.9, 0.9]]),
    )
    tree_speculative_sampling_target_only(**given)
    assert given["accept_token_num"].tolist() == [1]
    assert given["accept_index"].tolist()[0][:2] == [0, 2]
    assert given["predicts"].tolist() == [1, -7, 1]


def test_a_threshold_keeps_likely_drafts_whatever_the_number() -> None:
    given = _call(uniform_samples=torch.full((1, 3), 0.99))
    tree_speculative_sampling_target_only(**given, threshold_single=0.5)
    assert given["accept_token_num"].tolist() == [1]


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"candidates": torch.tensor([[3, 0, 1]], dtype=torch.int32)}, "candidates must be int64"),
        ({"uniform_samples": torch.zeros(1, 2)}, r"uniform_samples must be \[1, 3\]"),
        ({"threshold_acc": 1.5}, "threshold_acc must be in 0..1"),
        ({"target_probs": torch.zeros(1, 3, 4, dtype=torch.float64)}, "must be float32"),
    ],
)
def test_what_the_host_code_refuses_is_refused(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(KernelRefused, match=match):
        tree_speculative_sampling_target_only(**_call(**changed))


def test_the_largest_probabilities_are_made_to_add_up_to_1() -> None:
    found = top_k_renorm_probs(torch.tensor([_PARTS, _PARTS]), torch.tensor([1, 1 << 30]))
    assert found.tolist() == [[1.0, 0.0, 0.0, 0.0], list(_PARTS)]
    assert top_k_renorm_probs(torch.tensor([_PARTS]), 2)[0].tolist() == pytest.approx(
        [2 / 3, 1 / 3, 0.0, 0.0]
    )
