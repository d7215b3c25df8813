"""What is handed over on a device is copied there, and read with everything else."""

from __future__ import annotations

import torch

from fuzzgraph.handover import Later, Part, as_it_is, part_of


def taken(tensor: torch.Tensor, *, values: bool = True, at_once: bool = False) -> Part:
    with as_it_is():
        return part_of(tensor, values=values, at_once=at_once)


def content(part: Part) -> object:
    return None if part.values is None else part.values.tolist()


def test_content_is_that_of_the_moment_at_which_it_was_handed_over() -> None:
    tensor = torch.arange(6, dtype=torch.int32).view(2, 3)
    at_once = taken(tensor)
    with Later(here=True) as later:
        part = taken(tensor)
    assert content(part) is None
    tensor.fill_(9)
    later.fill(later.copies)
    assert content(part) == content(at_once) == [[0, 1, 2], [3, 4, 5]]
    assert (part.shape, part.dtype, part.address) == (at_once.shape, at_once.dtype, at_once.address)


def test_memory_of_the_host_is_read_at_once_beside_a_device() -> None:
    with Later(here=False) as later:
        assert taken(torch.ones(2, dtype=torch.int64)).values is not None
    assert later.copies == []


def test_what_is_asked_for_at_once_is_read_at_once() -> None:
    with Later(here=True) as later:
        assert taken(torch.ones(2, dtype=torch.int64), at_once=True).values is not None
    assert later.copies == []


def test_content_that_is_not_kept_is_not_copied() -> None:
    with Later(here=True) as later:
        taken(torch.ones(2))
        taken(torch.ones(2, dtype=torch.int64), values=False)
    assert later.copies == []


def test_outside_everything_is_read_at_once() -> None:
    with Later(here=True):
        pass
    assert taken(torch.ones(2, dtype=torch.int64)).values is not None
