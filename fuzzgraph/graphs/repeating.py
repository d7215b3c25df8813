"""Takes down an operation so that it can be done again, its results in the memory they had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from fuzzgraph.graphs.playback import frozen
from fuzzgraph.memory.arena import storage_key
from fuzzgraph.memory.operator_facts import Facts, tensors_in
from fuzzgraph.memory.placement import copy_whole, memory_of
from fuzzgraph.relays import relay

Step = Callable[[], object]

# Operators that change what a tensor object says of itself, and no memory; `resize_` apart.
_VIEWS_IN_PLACE = torch.Tag.inplace_view


def repeat_all(steps: Iterable[Step]) -> None:
    """Do all of it again, in order and past every mode."""
    with (
        torch.inference_mode(),
        torch._C._DisableTorchDispatch(),
        torch._C.DisableTorchFunction(),
    ):
        for step in steps:
            step()


def repeat_of(
    facts: Facts, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> Step | None:
    """What does this operation's work on a device again; None if it has none.

    Args:
        out: what it returned.
    """
    if facts.is_empty or _VIEWS_IN_PLACE in func.tags:
        return None
    kept = [each if _is_fresh(each, args, kwargs) else None for each in listed(out)]
    if not facts.writes and not any(each is not None for each in kept):
        return None
    args, kwargs = frozen(args), {name: frozen(item) for name, item in kwargs.items()}
    return partial(_again, func, args, kwargs, kept)


def fresh_of(out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The results that have memory of their own."""
    return [each for each in listed(out) if _is_fresh(each, args, kwargs)]


def listed(out: Any) -> list[Any]:
    """The results of an operation, be it one or several."""
    return list(out) if isinstance(out, (tuple, list)) else [out]


def moved(before: torch.Tensor, resized: torch.Tensor) -> Step | None:
    """What a device does in a resize: elements come along as they lie, if the tensor moved."""
    after = memory_of(resized)
    kept = min(len(before), len(after))
    if before.data_ptr() == after.data_ptr() or not kept:
        return None
    return partial(after[:kept].copy_, before[:kept])


def _is_fresh(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a result has memory of its own."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return False
    given = tensors_in([*args, *kwargs.values()])
    return storage_key(value) not in {storage_key(each) for each in given}


@relay
def _again(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kept: list[torch.Tensor | None]
) -> None:
    """Run an operation, its results in the memory that it gave them before."""
    for place, result in zip(kept, listed(func(*args, **kwargs)), strict=True):
        if place is not None:
            copy_whole(place, result)
