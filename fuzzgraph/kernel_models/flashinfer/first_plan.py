"""What a graph's later plans repeat of its first one.

A graph keeps what its kernels were launched with: the scalars of `run`, and the places of a plan's
parts in the workspace, which a planner lays out by its numbers. A later plan that says another
number either lies where those kernels do not look, or is not followed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.relays import relay

__all__ = ["FirstPlan", "held_to_first"]

_SOURCE = (
    "FlashInfer 0.6.12, scheduler.cuh: numbers of a plan lay out the workspace; decode.py run: its"
    " scalars and plan_info are arguments of the launch, which a graph keeps"
)


_OF_A_BATCH = frozenset({"max_kv_len"})
"""What an engine's own plan keeps for kernels other than fa2's, which read no such number (sglang
flashinfer_backend.py fast_prefill_plan; FlashInfer prefill.py run, by backend)."""


class FirstPlan:
    """The numbers, flags and dtypes of a graph's first plan, by the names of its arguments.

    Args:
        planner: what is planned by, for messages.
    """

    def __init__(self, planner: str) -> None:
        self._kernel = ModelKernel(planner, _repeats_first_plan, _SOURCE)
        self._first: dict[str, object] = {}

    def hold(self, given: Mapping[str, object]) -> None:
        """Keep what has not been given before; report what differs from the first time.

        Args:
            given: arguments by name; tensors and None are passed over.
        """
        for name, value in given.items():
            said = _said(value)
            if said is None:
                continue
            first = self._first.setdefault(name, said)
            if first != said:
                launch(self._kernel, argument=name, first=str(first), now=str(said))


def held_to_first(plan: Callable[..., Any], first: FirstPlan) -> Callable[..., Any]:
    """A plan whose arguments are held to those of the first one; engines give wrappers their own.

    Args:
        plan: a function, or a `functools.partial`, which stays one: engines look into it.
    """
    signature = inspect.signature(plan)
    if isinstance(plan, functools.partial):
        kept = _HeldPartial(plan.func, *plan.args, **plan.keywords)
        kept.before = lambda *args, **kwargs: _hold(first, signature, args, kwargs)
        return kept

    @functools.wraps(plan)
    @relay
    def held(*args: Any, **kwargs: Any) -> Any:
        _hold(first, signature, args, kwargs)
        return plan(*args, **kwargs)

    return held


class _HeldPartial(functools.partial):  # type: ignore[type-arg]
    """A partial that says what it is called with before it runs."""

    before: Callable[..., None]

    @relay
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self.before(*args, **kwargs)
        return super().__call__(*args, **kwargs)


def _hold(
    first: FirstPlan, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Any
) -> None:
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the call itself says so
        return
    said = {**given, **given.get("others", {})}
    first.hold({name: value for name, value in said.items() if name not in _OF_A_BATCH})


def _said(value: object) -> object:
    """A plain value, a dtype by its name; None for all else."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value if isinstance(value, (bool, int, float, str)) else None


def _repeats_first_plan(memory: KernelMemory, *, argument: str, first: str, now: str) -> None:
    rule = f"{argument} of a graph's plan must be that of its first plan, {first}"
    memory.misused(argument, rule, now)
