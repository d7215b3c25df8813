"""Calls are bound to names as Python itself binds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from fuzzgraph.targets.offline.binding import Binding, binding_of


def plain(a: Any, b: Any, c: Any = 3) -> None: ...


def by_name(a: Any, b: Any = 2, *, c: Any, d: Any = 4) -> None: ...


def with_others(a: Any, *, b: Any = 2, **others: Any) -> None: ...


def by_place(a: Any, /, b: Any = 2, **others: Any) -> None: ...


def with_a_list(a: Any, *rest: Any, b: Any = 2) -> None: ...


def nothing() -> None: ...


FUNCTIONS = (plain, by_name, with_others, by_place, with_a_list, nothing)
CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((1, 2, 3), {}),
    ((1, 2, 3, 4), {}),
    ((), {"b": 2, "a": 1}),
    ((), {"c": 3, "a": 1}),
    ((1,), {"c": 3, "b": 2}),
    ((1,), {"a": 1}),
    ((1, 2), {"b": 2}),
    ((1,), {"unknown": 5, "b": 2}),
    ((1,), {"others": 5}),
    ((), {"unknown": 5}),
    ((1, 2), {"d": 4}),
)


def outcome(bind: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "takes", list(bind().items())
    except TypeError as error:
        return "refuses", str(error)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_call_is_bound_or_refused_as_inspect_does_it(
    function: Callable[..., Any], call: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    args, kwargs = call
    signature = inspect.signature(function)
    want = outcome(lambda: signature.bind(*args, **kwargs).arguments)
    assert outcome(lambda: Binding(signature).named(args, kwargs)) == want


class Backend:
    def plan(self, a: Any, b: Any = 2) -> None: ...


def test_a_method_is_bound_once_for_all_objects_and_without_them() -> None:
    binding = binding_of(Backend().plan)
    assert binding is binding_of(Backend().plan)
    assert binding.named((1,), {}) == {"a": 1}
    whole = binding_of(Backend.plan)
    assert list(whole.named((None, 1), {})) == ["self", "a"]
