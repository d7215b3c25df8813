"""The features of a swarm: what each changes in a config, within a target's capabilities.

How features are combined, and made to agree, is `configs`' job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS, SPEC_MODES, Mode
from fuzzgraph.case.dimension import DimensionRow, Most, OneOf, Sizes, Switch
from fuzzgraph.splitmix import Chance
from fuzzgraph.strategies.profile import Profile

Fields = dict[str, Any]
"""Field of `EngineConfig` -> its value, while a config is put together."""
Pins = tuple[tuple[str, tuple[Any, ...]], ...]
"""Fields that a test holds to some values, the simplest first."""
Vary = Callable[[Fields, Capabilities, Profile, Chance], None]
"""Changes the fields, within the target's capabilities and the profile's sizes."""

LADDERS: tuple[tuple[int, ...], ...] = (
    (1,), (2,), (1, 2), (4,), (1, 4), (2, 3), (1, 2, 4), (8,), (3, 8), (1, 8), (2, 3, 5),
    (1, 2, 4, 8), (6, 12), (4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8), (2, 4, 12), (16, 32), (64, 128),
)  # fmt: skip
_TOKEN_LADDERS: tuple[tuple[int, ...], ...] = (
    (4,), (8,), (1, 2, 4, 8), (4, 8, 16), (6, 12), (3, 10), (16,), (8, 32),
)  # fmt: skip
_FULL_VECTOR = 8
"""Entries that a kernel handles at once at least, whatever its block: a row of fewer pages does not
tell a block that is too small from one that fits."""
CONTEXT_BLOCKS = (512, 1024, 2048, 4096, 8192)
"""Entries of a row that kernels which fill lists and tables take at once are 512, 1024 or 4096; the
others are multiples of those."""
_HEADS = ((2, 2), (2, 1), (4, 2), (4, 1), (3, 1), (4, 4))
_DIMS_OF_HEADS = ("head_dim", "v_head_dim")
# The last two are what models have; only targets whose kernels compute them fast draw them.
_HEAD_DIMS = ((8, 8), (8, 4), (4, 8), (16, 16), (16, 8), (64, 64), (128, 128))
_RARE_DIMS = 30
"""Percent of the configs with other heads than the simplest that have rare ones."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a config has or has not."""

    number: int
    """Enters what a config's number draws."""
    share: int
    """Percent of configs that have it, by turns; 0: as many as the config's own density says."""
    vary: Vary


def _modes(can: Capabilities) -> tuple[Mode, ...]:
    return tuple(mode for mode in can.modes if mode != "idle") or ("decode",)


def base_fields(can: Capabilities, profile: Profile) -> Fields:
    """The simplest value that the target has of each dimension."""
    batch = min(can.max_batch, profile.max_batch)
    fields = {name: _simplest(row, can) for name, row in DIMENSIONS.items()}
    modes = _modes(can)
    return fields | {
        "modes": ("decode" if "decode" in modes else modes[0],),
        "capture_bs": (1, 2) if batch > 1 else (1,),
        "capture_tokens": (8,),
        "recurrent_state": can.recurrent_only,
        "max_context_len": min(fields["max_context_len"], profile.max_context_len),
        "req_pool_size": batch,
    }


def _simplest(row: DimensionRow, can: Capabilities) -> Any:
    """The default where the target has it, else the first of its values, the least of its sizes."""
    if can.built_heads and row.name in _DIMS_OF_HEADS:
        return can.built_heads[0][_DIMS_OF_HEADS.index(row.name)]
    rule = row.spec.needs
    if isinstance(rule, Most):
        return min(row.default, getattr(can, rule.name))
    if isinstance(rule, (OneOf, Sizes)):
        has = getattr(can, rule.name)
        return row.default if row.default in has else min(has) if row.number else has[0]
    return row.default


def _values(row: DimensionRow, can: Capabilities) -> tuple[Any, ...]:
    """What to draw for a dimension that no function below varies."""
    rule = row.spec.needs
    if isinstance(rule, (OneOf, Sizes)):
        return tuple(getattr(can, rule.name))
    if isinstance(rule, Switch) and not getattr(can, rule.name):
        return ()
    values = row.spec.tried or (not row.default,)
    return (
        tuple(v for v in values if v <= getattr(can, rule.name))
        if isinstance(rule, Most)
        else values
    )


def _vary_modes(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    modes = _modes(can)
    # Few modes mostly: each one captures every size, and a history visits only some of them.
    count = min(len(modes), chance.pick((1, 1, 1, 1, 2, 2, 2, 3, 3, len(modes))))
    start = chance.below(len(modes))
    spec = [mode for mode in modes if mode in SPEC_MODES]
    if count == 3 and len(spec) == 3 and chance.percent(50):
        fields["modes"] = tuple(spec)
    else:
        fields["modes"] = tuple(modes[(start + i) % len(modes)] for i in range(count))


def _vary_ladder(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    batch = min(can.max_batch, profile.max_batch)
    top = 2 * batch if can.capture_beyond_pool else batch
    most = max(2, 8 // len(fields["modes"]))  # every mode captures every size
    sizes = [each for each in LADDERS if each[-1] <= top and len(each) <= most]
    fields["capture_bs"] = chance.pick(sizes)


def _vary_token_ladder(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    fields["capture_tokens"] = chance.pick(_TOKEN_LADDERS)


def _vary_pages(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    sizes = [size for size in can.page_sizes if size != fields["page_size"]]
    common = [size for size in sizes if size <= 32] or sizes
    rare = [size for size in sizes if 32 < size <= 128] or common
    largest = [size for size in sizes if size > 128] or rare
    draw = chance.below(100)  # large pages need long contexts, which are slow
    if sizes:
        fields["page_size"] = chance.pick(common if draw < 78 else rare if draw < 96 else largest)


def _vary_context(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    page = fields["page_size"]
    rare = min(can.max_context_len, profile.rare_context_len)
    usual = min(can.max_context_len, profile.max_context_len)
    if page > 1 and chance.percent(75):  # around whole pages, one page being too few to err in
        length = page * chance.pick((1, 2, 2, 3)) + chance.pick((-1, 0, 0, 1, 1))
        limit = rare if page > usual // 2 else usual
    else:
        length = chance.pick((4, 6, 8, 9, 12, 15, 17, 24, 31, 32, 33))
        limit = usual
    if chance.percent(16):
        length, limit = chance.pick((48, 64, 65, 100, 128, rare)), rare
    fields["max_context_len"] = max(1, min(length, limit))


def _vary_long_context(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    """Tables past the first blocks of the kernels that fill and read them, of few narrow rows."""
    limit = min(can.max_context_len, profile.long_context_len)
    lengths = [edge + chance.pick((1, 2, 37)) for edge in CONTEXT_BLOCKS if edge + 37 <= limit]
    if not lengths or fields["page_size"] * 2 > limit:
        return
    fields["max_context_len"] = chance.pick((*lengths, limit))
    fields["req_pool_size"] = min(fields["req_pool_size"], 3)
    narrow_rows(fields, can)
    fields["capture_bs"] = (2,) if profile.max_batch > 1 < can.max_batch else (1,)


def narrow_rows(fields: Fields, can: Capabilities) -> None:
    """The fewest heads and columns that the target has."""
    for name in ("num_q_heads", "num_kv_heads", *_DIMS_OF_HEADS):
        fields[name] = _simplest(DIMENSIONS[name], can)


def _vary_heads(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    heads = [pair for pair in _HEADS if pair[0] <= can.max_q_heads]
    if heads:
        fields["num_q_heads"], fields["num_kv_heads"] = chance.pick(heads)


def _vary_head_dims(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    dims = can.built_heads or [pair for pair in _HEAD_DIMS if max(pair) <= can.max_head_dim]
    rare = [pair for pair in can.rare_head_dims if all(pair)]
    if rare and chance.percent(_RARE_DIMS):
        dims = rare
    if dims:
        fields["head_dim"], fields["v_head_dim"] = chance.pick(dims)


def _vary_spec(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    fields["spec_topk"] = min(chance.pick((1, 2, 2, 4, 8)), can.max_spec_topk)
    fields["spec_steps"] = 1 + chance.below(min(5, can.max_spec_steps))
    fields["draft_tokens"] = min(1 + chance.pick((1, 2, 3, 3, 4, 5, 7)), can.max_draft_tokens)


def _vary_window(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    page = fields["page_size"]
    # Around a page, where a window cuts one in two.
    window = chance.pick((1, 2, 3, 4, 7, page - 1, page, page, page + 1, 2 * page))
    if can.sliding_window:
        fields["sliding_window"] = max(1, min(window, fields["max_context_len"]))


def _vary_swa(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    """A second layer whose window is shorter than the context, so that pages leave it."""
    if not can.swa_window:
        return
    if "decode" in can.modes:
        fields["modes"] = ("decode",)
    fields["swa_page_size"] = chance.pick(can.swa_page_sizes)
    page = fields["swa_page_size"] or fields["page_size"]
    windows = (1, 2, 3, page - 1, page, page + 1, 2 * page)
    most = max(1, fields["max_context_len"] - page - 1)
    fields["swa_window"] = max(1, min(chance.pick(windows), most))


def _vary_virtual_pages(
    fields: Fields, can: Capabilities, profile: Profile, chance: Chance
) -> None:
    """Of a model with layers of two kinds, whose memory is one pool."""
    if not can.virtual_pages:
        return
    if can.swa_window and not fields["recurrent_state"]:
        _vary_swa(fields, can, profile, chance)
        fields["swa_page_size"] = 0
    fields["virtual_pages"] = True
    past = _FULL_VECTOR * fields["page_size"] + 1
    if past <= min(can.max_context_len, profile.rare_context_len) and chance.percent(50):
        fields["max_context_len"] = max(fields["max_context_len"], past)


def _vary_window_in_tree(
    fields: Fields, can: Capabilities, profile: Profile, chance: Chance
) -> None:
    """A window that ends between a draft and its root, where a tree's mask decides.

    The deepest draft is `draft_tokens - 1` levels below the root, and the window must be shorter.
    """
    if not can.sliding_window or "target_verify" not in can.modes or can.max_draft_tokens < 3:
        return
    fields["modes"] = ("target_verify",)
    fields["spec_topk"] = min(chance.pick((2, 2, 4)), can.max_spec_topk)
    drafts = fields["draft_tokens"] = min(chance.pick((3, 4, 6)), can.max_draft_tokens)
    fields["sliding_window"] = min(chance.pick((1, 1, 2, drafts - 2)), drafts - 2)


def _vary_state(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    if can.recurrent_state and "decode" in can.modes:
        fields["recurrent_state"] = True
        fields["modes"] = ("decode",)


def _vary_runner(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    if "cpu_graph" in can.runners and "decode" in can.modes:
        fields["runner"] = "cpu_graph"
        fields["modes"] = ("decode",)


def _vary_tp(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    sizes = [size for size in (2, 2, 3, 4, 8) if size <= can.max_tp_size]
    if sizes:
        fields["attn_tp_size"] = chance.pick(sizes)
        fields["attn_tp_rank"] = chance.below(fields["attn_tp_size"])


def _vary_split(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    if can.split_kv:
        fields["split_kv"] = chance.pick((1, 2, 3, 4, 5, 8, 16, fields["page_size"]))


def _vary_pool(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    top = fields["capture_bs"][-1]
    beyond = (max(1, top - 1), max(1, top // 2 + 1)) if can.capture_beyond_pool else ()
    sizes = (top, top + 1, *beyond)
    size = min(chance.pick(sizes), fields["req_pool_size"])
    fields["req_pool_size"] = size
    # A server captures more rows than the pool has where it rounds the pool up to its ranks.
    shares = [ranks for ranks in (2, 4, 8) if not top % ranks and top <= -(-size // ranks) * ranks]
    ranks = [count for count in shares if count <= can.max_tp_size]
    if size < top and ranks and chance.percent(50):
        fields["attn_tp_size"] = chance.pick(tuple(ranks))
        fields["attn_tp_rank"] = chance.below(fields["attn_tp_size"])


def _by_its_row(row: DimensionRow) -> Vary:
    """Another value than the simplest one, of those that the target has."""

    def vary(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
        others = [value for value in _values(row, can) if value != fields[row.name]]
        if others:
            fields[row.name] = chance.pick(others)

    return vary


def _vary_past(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    """How many of its keys a query sees, which of them the engine keeps, and what reads them."""
    _by_its_row(DIMENSIONS["index_topk"])(fields, can, profile, chance)
    if len(can.sparse_kernels) > 1:
        fields["sparse_kernel"] = chance.pick(can.sparse_kernels)
    if len(can.topk_kernels) > 1:
        fields["topk_kernel"] = "unplanned" if chance.percent(25) else "planned"
    others = [kind for kind in can.kv_compressions if kind != fields["kv_compression"]]
    # Contexts of compressed keys are long, and a target that has others too has other features.
    if others and ("none" not in can.kv_compressions or chance.percent(8)):
        fields["kv_compression"] = chance.pick(others)
    if fields["kv_compression"] != "none":
        # A shorter context ends within the window, or before the first of the larger groups.
        long = chance.pick((131, 256, 260, 300, 400, 512))
        fields["max_context_len"] = max(fields["max_context_len"], min(long, can.max_context_len))
    _vary_index_layer(fields, can, chance)
    _vary_index_block(fields, can, chance)


def _vary_index_block(fields: Fields, can: Capabilities, chance: Chance) -> None:
    """Blocks that an indexer selects; a context has more of them than are selected."""
    sizes = [size for size in can.index_blocks if size]
    others = fields["kv_compression"] != "none" or not fields["index_topk"]
    if others or not sizes or (0 in can.index_blocks and not chance.percent(8)):
        return
    size = fields["index_block"] = chance.pick(sizes) if chance.percent(20) else min(sizes)
    long = size * (fields["index_topk"] + chance.pick((1, 2, 3, 6)))
    long += chance.pick((0, 1, size // 2))
    if long <= CONTEXT_BLOCKS[0]:  # longer contexts are rare, and have few rows
        fields["max_context_len"] = min(max(fields["max_context_len"], long), can.max_context_len)


def _vary_index_layer(fields: Fields, can: Capabilities, chance: Chance) -> None:
    """Whether indexers leave each other blocks, and what of compressed keys the layer has."""
    if fields["kv_compression"] not in ("c1", "c2") or len(can.candidate_blocks) == 1:
        return
    if chance.percent(75):
        fields["candidate_blocks"] = chance.pick([size for size in can.candidate_blocks if size])
    layers = can.index_layers if fields["candidate_blocks"] else ("own", "shared")
    fields["index_layer"] = chance.pick([one for one in layers if one in can.index_layers])


def _vary_row_mixing(fields: Fields, can: Capabilities, profile: Profile, chance: Chance) -> None:
    kinds = [kind for kind in can.row_mixings if kind != fields["row_mixing"]]
    if not kinds:
        return
    kind = chance.pick(kinds)
    if kind == "router" and fields["attn_tp_size"] == 1:  # it counts the tokens of one rank
        _vary_tp(fields, can, profile, chance)
    if kind != "router" or fields["attn_tp_size"] > 1:
        fields["row_mixing"] = kind


VARIED_BY: dict[str, Vary] = {
    "modes": _vary_modes,
    "capture_bs": _vary_ladder,
    "capture_tokens": _vary_token_ladder,
    "page_size": _vary_pages,
    "max_context_len": _vary_context,
    "req_pool_size": _vary_pool,
    "num_q_heads": _vary_heads,
    "head_dim": _vary_head_dims,
    "split_kv": _vary_split,
    "runner": _vary_runner,
    "sliding_window": _vary_window,
    "index_topk": _vary_past,
    "recurrent_state": _vary_state,
    "swa_window": _vary_swa,
    "virtual_pages": _vary_virtual_pages,
    "spec_topk": _vary_spec,
    "attn_tp_size": _vary_tp,
    "row_mixing": _vary_row_mixing,
}
"""Dimensions whose values depend on other fields, or that change others with them. Any other one
needs nothing here: its row says what to draw."""
_COMBINED = (Feature(23, 9, _vary_window_in_tree), Feature(29, 3, _vary_long_context))
"""Features that set several dimensions to values that seldom meet by chance."""

FEATURES: tuple[Feature, ...] = tuple(
    sorted(
        [
            *_COMBINED,
            *(
                Feature(row.spec.feature, row.spec.share, VARIED_BY.get(name) or _by_its_row(row))
                for name, row in DIMENSIONS.items()
                if row.spec.feature is not None
            ),
        ],
        key=lambda feature: feature.number,
    )
)
"""In the order of their numbers. Later features see the earlier ones' fields."""
