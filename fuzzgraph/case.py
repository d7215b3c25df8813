"""The case: one engine config and a history of replay steps, without tensors.

A case is small strict JSON. Tensor contents follow from its seed, so it means
the same on every machine; its content digest is its name. This module holds the
words and their validation. What a case looks like in memory is `layout`'s job.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec

from fuzzgraph.errors import InvalidCase

__all__ = [
    "SCHEMA_VERSION",
    "BatchRow",
    "Case",
    "EngineConfig",
    "Mode",
    "ReplayStep",
    "Via",
    "case_schema",
    "decode_case",
    "digest",
    "encode_case",
    "load_case",
    "validate",
]

SCHEMA_VERSION = 1

Mode = Literal["decode", "target_verify", "draft_extend", "draft", "prefill", "idle"]
Via = Literal["graph", "eager"]


class EngineConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What an engine is started with; every default is the simplest value.

    Sizes are in requests, tokens or pages as named. `req_pool_size` and
    `kv_pool_pages` count what requests may use: the reserved row and page 0 and
    the trap rows and pages come on top (see `world`).
    """

    modes: tuple[Mode, ...] = ("decode",)
    """Forward modes the engine captures graphs for."""
    capture_bs: tuple[int, ...] = (1, 2)
    """Captured batch sizes in request rows, ascending; gaps are fine."""
    capture_tokens: tuple[int, ...] = ()
    """Captured token counts, ascending, for the token-axis prefill runners."""
    page_size: int = 1
    max_context_len: int = 16
    req_pool_size: int = 8
    kv_pool_pages: int = 64
    num_q_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 4
    v_head_dim: int = 4
    attention: Literal["mha", "mla"] = "mha"
    """`mla`: one latent row serves as key and, in its first `v_head_dim` columns, as value."""
    page_map: Literal["csr", "page_table"] = "csr"
    """`csr`: kv_indptr + kv_indices in tokens; `page_table`: dense pages (unified attention)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    kv_dtype: Literal["auto", "float8_e4m3fn"] = "auto"
    kernels: Literal["torch", "triton"] = "torch"
    split_kv: int = 0
    """KV tokens per work item of the split plan; 0 means one item per row, no plan."""
    metadata: Literal["full", "raw_out_graph", "raw_in_graph"] = "full"
    """Whether metadata is built whole, or raw and upgraded before or inside the graph."""
    seq_len_fill_value: Literal[0, 1] = 1
    free_padding: Literal["keep", "zero", "copy_live"] = "keep"
    """Padding policy of buffers whose tail selects no memory (input_ids, positions)."""
    runner: Literal["graph", "cpu_graph"] = "graph"
    prefill_runner: Literal["piecewise", "breakable"] = "piecewise"
    sliding_window: int = 0
    """Keys a query sees besides itself; 0 means all."""
    max_encoder_len: int = 0
    """Room for encoder tokens per request; 0 means a decoder-only model."""
    recurrent_state: bool = False
    spec_steps: int = 1
    spec_topk: int = 1
    draft_tokens: int = 2
    """Tokens per request that a verify step checks."""
    attn_tp_size: int = 1
    attn_tp_rank: int = 0
    eager_above_ladder: bool = True
    """Whether a batch above the largest captured size runs eagerly instead of failing."""


class BatchRow(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One live request in a step."""

    request: int
    """Logical name of the request, for the life of the case."""
    seq_len: int = 1
    """KV tokens the step attends over, those computed in this step included."""
    new_tokens: int = 1
    """Tokens computed in this step: 1 in decode, the accept length in draft_extend."""
    encoder_len: int = 0


class ReplayStep(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One forward of the engine. A request not seen before is added, one seen again continues."""

    mode: Mode = "decode"
    rows: tuple[BatchRow, ...] = ()
    finish: tuple[int, ...] = ()
    """Requests that left before this step; their row, pages and state are free again."""
    via: Via = "graph"
    mrope: bool = False
    """Whether the optional multi-modal position input is present."""


class Case(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An engine config and the steps replayed on it."""

    schema_version: Literal[1]
    config: EngineConfig
    steps: tuple[ReplayStep, ...]
    seed: int = 0
    page_order: Literal["ascending", "descending", "shuffled", "fragmented"] = "ascending"
    shared_prefix_pages: int = 0
    """Leading pages that requests share, as prefix caching makes them."""


def _refuse(where: str, value: object, rule: str, way_out: str) -> NoReturn:
    raise InvalidCase(f"{where}={value!r} {rule}. {way_out}")


_POSITIVE = (
    "page_size",
    "max_context_len",
    "req_pool_size",
    "kv_pool_pages",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "v_head_dim",
    "spec_steps",
    "spec_topk",
    "draft_tokens",
    "attn_tp_size",
)
_LIMITS = {  # a case file is untrusted: bound what it can make us allocate
    "page_size": 1024,
    "max_context_len": 1 << 17,
    "req_pool_size": 4096,
    "kv_pool_pages": 1 << 20,
    "num_q_heads": 256,
    "num_kv_heads": 256,
    "head_dim": 1024,
    "v_head_dim": 1024,
    "spec_steps": 16,
    "spec_topk": 16,
    "draft_tokens": 64,
    "attn_tp_size": 64,
}


def _validate_config(config: EngineConfig) -> None:
    for name in _POSITIVE:
        value = getattr(config, name)
        if not 1 <= value <= _LIMITS[name]:
            _refuse(
                f"config.{name}", value, f"must lie in 1..{_LIMITS[name]}", "Change the config."
            )
    for name in ("split_kv", "sliding_window", "max_encoder_len", "attn_tp_rank"):
        if getattr(config, name) < 0:
            _refuse(
                f"config.{name}", getattr(config, name), "is negative", "Use 0 to switch it off."
            )
    for name in ("capture_bs", "capture_tokens"):
        sizes = getattr(config, name)
        if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
            _refuse(
                f"config.{name}",
                sizes,
                "must be ascending sizes >= 1 without repeats",
                "Sort it and drop repeats.",
            )
        if sizes and sizes[-1] > 8192:
            _refuse(f"config.{name}", sizes[-1], "exceeds 8192", "Use a smaller size.")
    if not config.modes or "idle" in config.modes or len(set(config.modes)) != len(config.modes):
        _refuse(
            "config.modes",
            config.modes,
            "must name each captured mode once, idle excepted",
            "List for example ['decode'].",
        )
    if set(config.modes) != {"prefill"} and not config.capture_bs:
        _refuse("config.capture_bs", (), "is empty", "Name at least one batch size, e.g. [1].")
    if "prefill" in config.modes and not config.capture_tokens:
        _refuse(
            "config.capture_tokens",
            (),
            "is empty although prefill is captured",
            "Name at least one token count, e.g. [8].",
        )
    if config.num_q_heads % config.num_kv_heads:
        _refuse(
            "config.num_q_heads",
            config.num_q_heads,
            f"is no multiple of num_kv_heads={config.num_kv_heads}",
            "Make it one.",
        )
    if config.attention == "mla" and (
        config.num_kv_heads != 1 or config.v_head_dim > config.head_dim
    ):
        _refuse(
            "config.attention",
            "mla",
            f"needs num_kv_heads=1 and v_head_dim <= head_dim; got {config.num_kv_heads} and "
            f"{config.v_head_dim} > {config.head_dim}",
            "Change these or use 'mha'.",
        )
    if config.attn_tp_rank >= config.attn_tp_size:
        _refuse(
            "config.attn_tp_rank",
            config.attn_tp_rank,
            f"must be below attn_tp_size={config.attn_tp_size}",
            "Lower the rank.",
        )
    if config.recurrent_state and config.modes != ("decode",):
        _refuse(
            "config.recurrent_state",
            True,
            f"goes with modes=['decode'] only; got {list(config.modes)}",
            "Drop one of the two.",
        )
    if config.runner == "cpu_graph" and config.modes != ("decode",):
        _refuse(
            "config.runner",
            "cpu_graph",
            f"captures decode only; got modes {list(config.modes)}",
            "Use runner='graph'.",
        )


def _expected_new_tokens(config: EngineConfig, mode: Mode) -> tuple[int, int]:
    """Smallest and largest `new_tokens` of a row in `mode`."""
    if mode == "target_verify":
        return config.draft_tokens, config.draft_tokens
    if mode == "draft_extend":
        return 0, config.draft_tokens
    if mode == "draft":
        return 0, 0
    if mode == "prefill":
        return 1, config.max_context_len
    return 1, 1


def _validate_row(config: EngineConfig, step: ReplayStep, row: BatchRow, where: str) -> None:
    low, high = _expected_new_tokens(config, step.mode)
    if not low <= row.new_tokens <= high:
        _refuse(
            f"{where}.new_tokens",
            row.new_tokens,
            f"must lie in {low}..{high} in mode {step.mode!r}",
            "Change the row or the mode.",
        )
    least = max(row.new_tokens, 1)
    if not least <= row.seq_len <= config.max_context_len:
        _refuse(
            f"{where}.seq_len",
            row.seq_len,
            f"must lie in {least}..max_context_len={config.max_context_len}",
            "Shorten the request, or raise config.max_context_len.",
        )
    if not 0 <= row.request < 1 << 20:
        _refuse(
            f"{where}.request", row.request, "must lie in 0..1048575", "Use a small request id."
        )
    if not 0 <= row.encoder_len <= config.max_encoder_len:
        _refuse(
            f"{where}.encoder_len",
            row.encoder_len,
            f"must lie in 0..max_encoder_len={config.max_encoder_len}",
            "Shorten it, or raise config.max_encoder_len.",
        )


def _validate_size(config: EngineConfig, step: ReplayStep, where: str) -> None:
    if step.mode == "prefill":
        size = sum(row.new_tokens for row in step.rows)
        ladder, name = config.capture_tokens, "capture_tokens"
    else:
        size, ladder, name = len(step.rows), config.capture_bs, "capture_bs"
    if step.via == "graph" and size > ladder[-1] and not config.eager_above_ladder:
        _refuse(
            f"{where}: size",
            size,
            f"exceeds max({name})={ladder[-1]} and eager_above_ladder is false",
            f"Add a size >= {size} to config.{name}, or shrink the batch.",
        )


def validate(case: Case) -> Case:
    """Return the case if it is coherent.

    Raises:
        InvalidCase: names the first field that contradicts another, its value and the way out.
    """
    config = case.config
    _validate_config(config)
    if not case.steps:
        _refuse("steps", (), "is empty", "Give at least one step.")
    if len(case.steps) > 1000:
        _refuse("steps", len(case.steps), "are more than 1000", "Split the case.")
    if not 0 <= case.seed < 1 << 63:
        _refuse("seed", case.seed, "must lie in 0..2**63-1", "Use a non-negative seed.")
    if not 0 <= case.shared_prefix_pages <= config.kv_pool_pages:
        _refuse(
            "shared_prefix_pages",
            case.shared_prefix_pages,
            f"must lie in 0..kv_pool_pages={config.kv_pool_pages}",
            "Lower it.",
        )
    live: dict[int, int] = {}
    for index, step in enumerate(case.steps):
        where = f"steps[{index}]"
        for request in step.finish:
            if live.pop(request, None) is None:
                _refuse(
                    f"{where}.finish",
                    request,
                    "names a request that is not live",
                    "Add the request in an earlier step, or drop it here.",
                )
        if step.mode == "idle" and step.rows:
            _refuse(
                f"{where}.rows", len(step.rows), "must be empty in mode 'idle'", "Drop the rows."
            )
        if step.mode != "idle" and step.mode not in config.modes:
            _refuse(
                f"{where}.mode",
                step.mode,
                f"is not captured; config.modes={list(config.modes)}",
                "Add it there, or change the step.",
            )
        names = [row.request for row in step.rows]
        if len(set(names)) != len(names):
            _refuse(f"{where}.rows", names, "name a request twice", "Keep one row per request.")
        for position, row in enumerate(step.rows):
            _validate_row(config, step, row, f"{where}.rows[{position}]")
            if live.setdefault(row.request, row.encoder_len) != row.encoder_len:
                _refuse(
                    f"{where}.rows[{position}].encoder_len",
                    row.encoder_len,
                    f"contradicts {live[row.request]} given earlier for request {row.request}",
                    "An encoder output never changes: use one length.",
                )
        if len(live) > config.req_pool_size:
            _refuse(
                f"{where}: live requests",
                len(live),
                f"exceed req_pool_size={config.req_pool_size}",
                "Finish some, or raise config.req_pool_size.",
            )
        if step.mode != "idle":
            _validate_size(config, step, where)
    return case


def encode_case(case: Case) -> bytes:
    """Canonical JSON: sorted keys, defaults omitted; equal cases give equal bytes."""
    return msgspec.json.encode(case, order="deterministic")


def digest(case: Case) -> str:
    """First 12 hex digits of the SHA-256 of the canonical JSON: the name of the case."""
    return hashlib.sha256(encode_case(case)).hexdigest()[:12]


def decode_case(text: bytes | str, where: str = "case") -> Case:
    """Parse and validate strict JSON.

    Raises:
        InvalidCase: not JSON, an unknown field, a wrong type, another schema version, or a
            contradiction; `where` is named in the message.
    """
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidCase(
            f"{where}: not valid JSON ({error}). Write it with 'fuzzgraph export'."
        ) from None
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SCHEMA_VERSION:
        raise InvalidCase(
            f"{where}: schema_version={version!r} is not supported; this FuzzGraph reads "
            f"{SCHEMA_VERSION}. Convert the case, or use the FuzzGraph that wrote it."
        )
    try:
        return validate(msgspec.convert(found, Case))
    except msgspec.ValidationError as error:
        raise InvalidCase(f"{where}: {error}. See corpus/case.schema.json for the form.") from None
    except InvalidCase as error:
        raise InvalidCase(f"{where}: {error}") from None


def load_case(path: Path) -> Case:
    """Read a case file.

    Raises:
        InvalidCase: the file cannot be read, or `decode_case` refuses it.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidCase(
            f"{path}: cannot be read ({error.strerror}). Give the path of a case file."
        ) from None
    return decode_case(text, where=str(path))


def case_schema() -> dict[str, Any]:
    """The published JSON schema of a case file."""
    return msgspec.json.schema(Case)
