"""Checks that the pools which a session hands over can hold what a config asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch

from fuzzgraph.case import EngineConfig, attention_layers, group_configs, recurrent_layers
from fuzzgraph.case.verified_states import state_slots_each, states_each
from fuzzgraph.content import DTYPES, content_for
from fuzzgraph.errors import TargetFailed
from fuzzgraph.execution.pool_group import further_layers
from fuzzgraph.execution.pool_memory import group_name, page_shape
from fuzzgraph.ports import Pools, Session, unwrapped
from fuzzgraph.recurrent_layers.channel_decay import channel_heads
from fuzzgraph.recurrent_layers.decayed_attention import LINEAR_STATE
from fuzzgraph.recurrent_layers.delta_rule import delta_heads
from fuzzgraph.recurrent_layers.gated_convolution import GATED_COLUMNS, GATED_TAPS
from fuzzgraph.recurrent_layers.mamba2 import scan_heads
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.targets.protocol import GUIDE
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW


def require_pools(session: Session, config: EngineConfig) -> None:
    """Check every pool of a session.

    Raises:
        TargetFailed: a pool is too small, or cannot be written row by row; names each.
    """
    wrong = list(_wrong_pools(session.pools, config))
    if wrong:
        name = type(unwrapped(session)).__name__
        raise TargetFailed(f"pools of {name}: {'; '.join(wrong)}; {GUIDE}.")


def _wrong_pools(pools: Pools, config: EngineConfig) -> Iterator[str]:
    shapes = group_configs(config)
    if len(pools.more_groups) != len(shapes) - 1:
        yield (
            f"there are {len(pools.more_groups)} more_groups, and the config has {len(shapes) - 1}"
            " KV cache groups beside the first"
        )
    width = config.max_context_len
    for number, (group, shape) in enumerate(zip(pools.groups, shapes, strict=False)):
        in_front = shape.max_encoder_len if pools.encoder_in_front else 0
        name, table = group_name("req_to_token", number), group.req_to_token
        yield from _wrong_map(name, table, shape, width + in_front)
        yield from _wrong_planes(group_name("kv_planes", number), group.kv_planes, shape)
    for layer, groups in enumerate(pools.draft_layers, 1):
        for number, (group, shape) in enumerate(zip(groups, shapes, strict=True)):
            yield from _wrong_planes(group_name("kv_planes", number, layer), group.kv_planes, shape)
    further = len(attention_layers(config)) - len(shapes)
    if len(pools.more_layers) != further:
        yield (
            f"there are {len(pools.more_layers)} more_layers, and the config has {further} layers"
            " beside the first of each group"
        )
    else:
        for at, (layer_of, planes) in enumerate(further_layers(pools, config)):
            yield from _wrong_planes(f"more_layers[{at}]", planes, shapes[layer_of.group])
    yield from _wrong_planes("encoder_planes", pools.encoder_planes, config)
    yield from _wrong_map("encoder_to_token", pools.encoder_to_token, config, 0)
    rows = FIRST_ROW + max(state_slots_each(config), 1)
    # Inputs of a verify's tokens, behind those that the convolution sees.
    more = 0 if pools.states_committed else max(states_each(config), 1) - 1
    sizes = _state_sizes(config)
    first = {name: getattr(pools, name) for name in sizes}
    recurrent = max(recurrent_layers(config), 1)
    if pools.states and len(pools.more_states) != recurrent - 1:
        yield (
            f"there are {len(pools.more_states)} more_states, and the config has {recurrent - 1}"
            " recurrent layers beside the first"
        )
    for at, (name, (numbers, columns)) in product((first, *pools.more_states), sizes.items()):
        tensor = at.get(name)
        if tensor is not None:
            # States are float32, and so are inputs of a convolution or as the model computes.
            in_model = not numbers and tensor.dtype == DTYPES[config.dtype]
            item = tensor.itemsize if in_model else torch.float32.itemsize
            inputs = _TAPS.get(name, CONV_WIDTH) - 1 + more
            yield from _wrong_rows(name, tensor, rows, item * (numbers or inputs * columns))
            if not numbers:
                turned = name in pools.transposed_states
                yield from _wrong_order(name, tensor, columns, turned)


def _state_sizes(config: EngineConfig) -> dict[str, tuple[int, int]]:
    """Field of `Pools` -> (numbers of a state, columns of a convolution's input), the other one
    0."""
    delta, channel = delta_heads(config), channel_heads(config)
    scan = scan_heads(config)
    return {
        "state": (scan.numbers, 0),
        "conv_state": (0, scan.columns),
        "delta_state": (delta.numbers, 0),
        "delta_conv_state": (0, delta.columns),
        "channel_state": (channel.numbers, 0),
        "channel_conv_state": (0, channel.columns),
        "linear_state": (LINEAR_STATE, 0),
        "gated_conv_state": (0, GATED_COLUMNS),
    }


_TAPS = {"gated_conv_state": GATED_TAPS}
"""Of a convolution, where they are not CONV_WIDTH."""


def _wrong_order(name: str, tensor: torch.Tensor, columns: int, turned: bool) -> Iterator[str]:
    """Whether the inputs of a convolution lie as the session says."""
    if tensor.dim() == 3 and tensor.shape[1 if turned else 2] != columns:
        said = "names" if turned else "does not name"
        yield (
            f"{name} is {list(tensor.shape)}, transposed_states {said} it, and an input has"
            f" {columns} columns"
        )


def _wrong_planes(
    name: str, planes: tuple[torch.Tensor, ...], config: EngineConfig
) -> Iterator[str]:
    content = content_for(config)
    shapes = content.plane_shapes
    if planes and len(planes) != len(shapes):
        yield f"there are {len(planes)} {name}, and {config.attention} needs {len(shapes)}"
        return
    # The config counts the pages that cases may use. The reserved and the trap pages come on top.
    slots = (FIRST_PAGE + config.kv_pool_pages) * config.page_size
    for number, plane in enumerate(planes):
        row = math.prod(shapes[number]) * content.storage_dtype.itemsize
        per_page = math.prod(page_shape(plane, number, config))
        yield from _wrong_rows(f"{name}[{number}]", plane, slots // per_page, row * per_page)


def _wrong_map(
    name: str, table: torch.Tensor | None, config: EngineConfig, width: int
) -> Iterator[str]:
    if table is None:
        return
    rows = FIRST_ROW + config.req_pool_size
    width = width or config.max_encoder_len
    shape = list(table.shape)
    if table.dim() != 2 or shape[0] < rows or shape[1] < width:
        yield f"{name} is {shape}, and the config needs at least [{rows}, {width}]"
    elif not table.is_contiguous():
        # It is written through a flat view.
        yield f"{name} of strides {list(table.stride())} is not contiguous"


def _wrong_rows(name: str, plane: torch.Tensor, rows: int, row_bytes: int) -> Iterator[str]:
    """Why a plane cannot be written row by row, as bytes."""
    shape, strides = list(plane.shape), list(plane.stride())
    if not plane.dim() or len(plane) < rows:
        yield f"{name} is {shape}, and the config needs at least {rows} rows"
    elif math.prod(plane.shape[1:]) * plane.itemsize != row_bytes:
        yield f"{name} is {shape} of {plane.dtype}, and a row must have {row_bytes} bytes"
    elif strides[-1] != 1 and plane.itemsize > 1:
        yield (
            f"{name} is {shape} of strides {strides}: the elements of a row are not adjacent, so it"
            " cannot be written as bytes. Hand over a view whose last dimension is contiguous"
        )
