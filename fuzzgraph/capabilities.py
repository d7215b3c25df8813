"""What a target can express: the bounds within which strategies draw cases for it, and what of a
saved case it does not support.

The fields follow from the table of dimensions (`EngineConfig`), and are checked against it when a
target declares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from fuzzgraph.case import DIMENSIONS, Case, EngineConfig, cuts_rows, padded_size, rank_sizes
from fuzzgraph.case.dimension import DimensionRow, Most, OneOf, Sizes, Switch
from fuzzgraph.case.verified_states import verified_prompts, verifies_states
from fuzzgraph.case.waiting import first_wait
from fuzzgraph.errors import UsageError

_ANY_HEAD_DIMS = ((0, 0),)
_OTHERS: dict[str, tuple[Any, Any]] = {
    "max_batch": (8, 8),
    # Requests of a batch in rare configs whose rows are short and narrow; 0: no such configs.
    "max_wide_batch": (0, 265),
    # Least steps of a draft in two thirds of the configs, where what its steps share shows.
    "usual_spec_steps": (1, 1),
    # Least tokens of a verify's row, where kernels are made for a number of them.
    "min_draft_tokens": (1, 1),
    # Least tokens of a row: 2 where the first one is a prompt, which is no decode.
    "min_seq_len": (1, 1),
    # Columns of a latent row beyond its value, `head_dim - v_head_dim` in `mla`: the rotary part.
    "min_rope_dim": (0, 0),
    # Least numbers of keys and values in a page, where blocks of one size hold states too.
    "min_page_numbers": (0, 0),
    # Tokens of a chunk, behind whole numbers of which kernels can keep a prompt's states for a
    # prefix cache, and so only behind whole chunks and pages; 0 where prompts keep none.
    "state_chunk": (0, 64),
    # How many more of them for each draft of a verify by layers with recurrent state.
    "page_numbers_per_draft": (0, 0),
    # The model's dtype where its KV is FP8: kernels that take FP8 queries give one; "" for any.
    "fp8_kv_beside": ("", ""),
    # The model's dtype where its experts have LoRA adapters: kernels that take one; "" for any.
    "lora_experts_dtype": ("", ""),
    # Pairs of `head_dim` and `v_head_dim` that kernels are built for; (0, 0) for any up to
    # `max_head_dim`. The first one is the simplest.
    "head_dims": (_ANY_HEAD_DIMS, _ANY_HEAD_DIMS),
    # Pairs of these that a few configs have, however narrow others are, since kernels take other
    # tiles for them; (0, 0) for none.
    "rare_head_dims": (_ANY_HEAD_DIMS, _ANY_HEAD_DIMS),
    # Query heads that kernels of latent attention are built for; 0 for any number.
    "latent_heads": ((0,), (0,)),
    # Query heads of each KV head that kernels are built for; 0 for any number.
    "query_heads_each": (0, 0),
    "mrope": (False, True),  # whether steps bring the optional multi-modal position input
    # Whether cases are drawn in which requests that left come back, as preempted ones do.
    "preemption": (False, True),
    # Whether rows of any verify may have fewer drafts than `draft_tokens` says.
    "ragged_verify": (False, True),
    # Whether layers with recurrent state verify drafts.
    "recurrent_verify": (False, True),
    # Whether a verify by layers with recurrent state may compute several tokens of a prompt.
    "verified_prompts": (True, True),
    # Whether requests wait, with all that they own, while others go on.
    "waiting": (True, True),
    # Whether batches run without a graph: steps that ask for it, and those above the ladder.
    "eager_steps": (True, True),
    # Whether the largest captured size may exceed the request pool.
    "capture_beyond_pool": (True, True),
    # Whether requests that share a prefix have pages of their own in further KV cache groups. They
    # have not where those pages are found by slots of the first group.
    "prefix_by_group": (True, True),
    # Whether requests share a prefix. They do not where keys of its end follow from what comes
    # behind it.
    "shared_prefixes": (True, True),
    # Whether requests of a model with an encoder share a prefix. They do not where a prefix begins
    # with the tokens of the encoder.
    "prefix_beside_encoder": (True, True),
    # Whether decodes are driven beside data-parallel ranks that compute prompts.
    "prefilling_ranks": (False, True),
    # Whether an engine that knows of no other rank runs batches without requests.
    "idle_alone": (True, True),
    # Whether every server has several data-parallel ranks: `dp_size` > 1.
    "data_ranks_only": (False, False),
    # Whether the model always has recurrent layers, so that every config has recurrent state.
    "recurrent_only": (False, False),
    # Whether every model has an encoder: `max_encoder_len` > 0.
    "encoder_only": (False, False),
    # Whether it always has a layer behind a sliding window beside the first: `swa_window` > 0.
    "swa_only": (False, False),
}
"""What no single dimension of a config says: default and widest value."""


def _default_and_widest(row: DimensionRow) -> tuple[Any, Any]:
    rule = row.spec.needs
    if isinstance(rule, Switch):
        return False, True
    if isinstance(rule, Most):
        return rule.default, rule.widest
    if isinstance(rule, Sizes):
        return (row.default,), rule.widest
    return (row.default if isinstance(row.default, tuple) else (row.default,)), row.choices


_ROWS: dict[str, DimensionRow] = {
    row.spec.needs.name: row for row in reversed([*DIMENSIONS.values()]) if row.spec.needs
}
"""Field of `Capabilities` -> the dimension that it is about, the first of several."""
_FIELDS: Final[Mapping[str, tuple[Any, Any]]] = MappingProxyType(
    {name: _default_and_widest(_ROWS[name]) for name in reversed(_ROWS)} | _OTHERS
)
"""Field of `Capabilities` -> its default and its widest value."""


class Capabilities:
    """The dimensions a target has. Strategies never draw outside; nothing is filtered away.

    Takes a keyword for each rule in the table of dimensions; `help(Capabilities)` lists them with
    their defaults, each the simplest value. Forward modes with `idle` among them have idle steps
    drawn too. Immutable and hashable.

    Raises:
        UsageError: an unknown field, or a value that no config can have.

    >>> Capabilities(page_sizes=(1, 16), dtypes=("float32", "float16"))
    Capabilities(page_sizes=(1, 16), dtypes=('float32', 'float16'))
    """

    __signature__ = Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default)
            for name, (default, _) in _FIELDS.items()
        ]
    )

    def __init__(self, **declared: Any) -> None:
        for name in declared:
            if name not in _FIELDS:
                known = ", ".join(_FIELDS)
                raise UsageError(f"Capabilities({name}=...) is not a field. Known: {known}.")
        values = {
            name: _checked(name, declared.get(name, default))
            for name, (default, _) in _FIELDS.items()
        }
        vars(self).update(values, _hash=hash(tuple(values.values())))

    @property
    def built_heads(self) -> tuple[tuple[int, int], ...]:
        """Pairs of `head_dim` and `v_head_dim` to choose from; () where kernels take any."""
        return () if self.head_dims == _ANY_HEAD_DIMS else self.head_dims

    def replace(self, **changes: Any) -> Capabilities:
        """The same capabilities but for these fields."""
        return Capabilities(**{**{name: getattr(self, name) for name in _FIELDS}, **changes})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    else:

        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(f"Capabilities are immutable. Use replace({name}=...).")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Capabilities) and vars(self) == vars(other)

    def __hash__(self) -> int:
        # Configs are cached by capabilities: each drawn case hashes them.
        return self._hash  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name, (default, _) in _FIELDS.items()
            if getattr(self, name) != default
        ]
        return f"Capabilities({', '.join(shown)})"


def _checked(name: str, value: Any) -> Any:
    """The value as the field holds it, lists as tuples."""
    default, _ = _FIELDS[name]
    value = tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value
    if type(value) is not type(default) or value == ():
        kind = "a non-empty tuple" if isinstance(default, tuple) else type(default).__name__
        raise UsageError(f"Capabilities({name}={value!r}) must be {kind}, for example {default!r}.")
    row = _ROWS.get(name)
    listed = row and row.choices and isinstance(value, tuple)
    unknown = [one for one in value if one not in row.choices] if row and listed else []
    if row and unknown:
        choices = ", ".join(map(repr, row.choices))
        raise UsageError(
            f"Capabilities({name}={value!r}): {unknown[0]!r} is not a value of "
            f"EngineConfig.{row.name}. Choose from {choices}."
        )
    return value


WIDEST = Capabilities(**{name: widest for name, (_, widest) in _FIELDS.items()})
"""All that a case can say: the capabilities of a target without limits of its own."""


def unsupported_setting(capabilities: Capabilities, config: EngineConfig) -> str | None:
    """The first setting of a config that a target with these capabilities does not drive.

    For `Target.unsupported`. Sizes are left out: they bound what is drawn, and a saved case with
    larger ones is worth a try.

    >>> unsupported_setting(Capabilities(), EngineConfig(sliding_window=4))
    'sliding_window=4 is not driven'
    >>> unsupported_setting(Capabilities(), EngineConfig(dtype="bfloat16"))
    "dtype='bfloat16' is not driven, only float32"
    """
    for name, row in DIMENSIONS.items():
        if row.spec.needs is not None:
            value, has = getattr(config, name), getattr(capabilities, row.spec.needs.name)
            reason = _refused(row, value, has)
            if reason is not None:
                return reason
    dims, built = (config.head_dim, config.v_head_dim), capabilities.built_heads
    if built and dims not in built:
        pairs = ", ".join(f"{head} and {value}" for head, value in built)
        return f"head_dim={dims[0]} with v_head_dim={dims[1]} is not driven, only {pairs}"
    beside = capabilities.fp8_kv_beside or config.dtype
    if config.kv_dtype != "auto" and config.dtype != beside:
        return f"dtype={config.dtype!r} with KV in {config.kv_dtype} is not driven, only {beside}"
    of_experts = capabilities.lora_experts_dtype or config.dtype
    if config.max_loras and config.num_experts and config.dtype != of_experts:
        return f"dtype={config.dtype!r} with adapters of experts is not driven, only {of_experts}"
    if verifies_states(config) and not capabilities.recurrent_verify:
        return "recurrent_state in target_verify is not driven"
    interval, kept = config.state_track_interval, prompt_interval(capabilities, config.page_size)
    if config.modes == ("prefill",) and interval not in (0, kept):
        only = f"only {kept}" if kept else "prompts keep no states"
        return f"state_track_interval={interval} in prefill is not driven, {only}"
    least, numbers = least_page_numbers(capabilities, config), page_numbers(config)
    if numbers < least:
        return f"a page of {numbers} numbers is not driven, only from {least} on"
    if not capabilities.capture_beyond_pool and config.capture_bs[-1:] > (config.req_pool_size,):
        return f"capture_bs up to {config.capture_bs[-1]} exceeds the request pool"
    return None


def prompt_interval(capabilities: Capabilities, page_size: int) -> int:
    """Tokens behind multiples of which prompts keep states for a prefix cache, 0 for none: whole
    chunks of the kernels and whole pages.

    Source: sglang runtime_context.py `mamba_cache_chunk_size`, `mamba_checkpoint_grid`.
    """
    return math.lcm(capabilities.state_chunk, page_size)


def least_page_numbers(capabilities: Capabilities, config: EngineConfig) -> int:
    """Numbers of keys and values that a page must have room for."""
    drafts = config.draft_tokens - 1 if verifies_states(config) else 0
    found: int = capabilities.min_page_numbers + drafts * capabilities.page_numbers_per_draft
    return found


def page_numbers(config: EngineConfig) -> int:
    """Numbers of keys and values in a page; a latent row is key and value at once.

    >>> page_numbers(EngineConfig(page_size=16, num_kv_heads=2, head_dim=8, v_head_dim=8))
    512
    """
    columns = config.head_dim if config.attention == "mla" else config.head_dim + config.v_head_dim
    return config.page_size * config.num_kv_heads * columns


def _refused(row: DimensionRow, value: Any, has: Any) -> str | None:
    """Why a target that declares `has` does not drive this value of the dimension."""
    rule = row.spec.needs
    if isinstance(rule, OneOf):
        values = value if isinstance(value, tuple) else (value,)
        strange = [one for one in values if one not in has]
        if not strange:
            return None
        what = f"mode {strange[0]!r}" if row.name == "modes" else f"{row.name}={strange[0]!r}"
        return f"{what} is not driven, only {', '.join(map(str, has))}"
    absent = isinstance(rule, Switch) and value != row.default and not has
    absent = absent or (isinstance(rule, Most) and rule.one_is_none and value > 1 == has)
    return f"{row.name}={value!r} is not driven" if absent else None


def unsupported_case(capabilities: Capabilities, case: Case) -> str | None:
    """Why a target cannot express one of the steps, in one line; None if it can express all.

    The config is judged by `Target.unsupported`. A saved case of another target may ask for more.
    """
    whole = _unsupported_history(capabilities, case)
    if whole is not None:
        return whole
    for number, step in enumerate(case.steps):
        if not capabilities.idle_alone and not any(rank_sizes(case.config, step)):
            return f"steps[{number}] without rows on any rank is not driven"
        if step.others_prefill and not capabilities.prefilling_ranks:
            return f"steps[{number}].others_prefill is not driven"
        if step.mrope and not capabilities.mrope:
            return f"steps[{number}].mrope is not driven"
        least = capabilities.min_seq_len
        shortest = min((row.seq_len for row in step.rows), default=least)
        if shortest < least:
            said = f"steps[{number}] with a row of {shortest} tokens"
            return f"{said} is not driven, only from {least} on"
        cuts = cuts_rows(case.config, max(rank_sizes(case.config, step)))
        if step.mode == "target_verify" and not (capabilities.ragged_verify or cuts):
            drafts = {row.new_tokens for row in step.rows} - {case.config.draft_tokens}
            if drafts:
                return (
                    f"steps[{number}] verifies {min(drafts)} tokens of a row, which is not driven"
                )
        if capabilities.eager_steps:
            continue
        if step.via == "eager":
            return f"steps[{number}].via='eager' is not driven, only 'graph'"
        if step.rows and padded_size(case.config, step) is None:
            return f"steps[{number}] above the captured sizes is not driven"
    return None


def unshared(capabilities: Capabilities, config: EngineConfig) -> str | None:
    """What of a config keeps its requests from sharing a prefix, as in " with swa_window"; "" where
    no requests of the target do, None where they may."""
    beside = {
        "swa_window": capabilities.prefix_by_group,
        "max_encoder_len": capabilities.prefix_beside_encoder,
    }
    for name, has in beside.items():
        if getattr(config, name) and not has:
            return f" with {name}"
    return None if capabilities.shared_prefixes else ""


def _unsupported_history(capabilities: Capabilities, case: Case) -> str | None:
    """The same of what no single step says."""
    shared = case.shared_prefix_pages
    apart = unshared(capabilities, case.config) if shared else None
    if apart is not None:
        return f"shared_prefix_pages={shared}{apart} is not driven"
    if verifies_states(case.config) and not capabilities.verified_prompts:
        for number, tokens in verified_prompts(case):
            if tokens > 1:
                return f"steps[{number}] with {tokens} tokens of a prompt is not driven"
    if not capabilities.waiting and (waits := first_wait(case)) is not None:
        return f"steps[{waits}] without a request that comes again is not driven"
    return None


def missing(capabilities: Capabilities) -> tuple[str, ...]:
    """What a case can say and this target cannot, one line for each field; limits left out.

    >>> missing(Capabilities(modes=("decode", "draft", "prefill", "idle")))[0]
    'modes: target_verify, draft_extend'
    """
    lines = []
    for field, (_, widest) in _FIELDS.items():
        has, name = getattr(capabilities, field), field.replace("_", " ")
        if isinstance(widest, tuple):
            absent = [str(value) for value in widest if value not in has]
            if absent:
                lines.append(f"{name}: {', '.join(absent)}")
        elif widest is True and has is False:
            lines.append(name)
    return tuple(lines)
