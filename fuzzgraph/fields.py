"""Declares one piece of replay metadata of a target: its axis, its padding, its live entries.

The contract oracle judges by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fuzzgraph.case import Mode
from fuzzgraph.errors import UsageError

_REPEATED = {  # field name -> what live entries repeat, where an engine declares nothing else
    "seq_lens": "seq_lens",
    "new_lens": "new_lens",
    "kv_last_page_len": "last_page_lens",
    "mrope": "mrope",
    "req_pool_indices": "req_pool_indices",
    "out_cache_loc": "slot_mapping",
    "slot_mapping": "slot_mapping",
    "input_ids": "input_ids",
    "positions": "positions",
    "encoder_lens": "encoder_lens",
    "state_indices": "state_slots",
}

TOLD = "told"
"""`Field.repeats` of what the target itself has told the engine; see `Observation.told`."""

PADDED_OF_RANKS = "padded_of_ranks"
"""`Field.repeats` of counts for each data-parallel rank: the padded tokens of the graph that all of
them replay."""

ADAPTER_POOLS = "adapter_pools"
"""`Field.repeats` of the adapters that a pool holds, which may be one of several pools."""

# Counts whose rules the contract oracle has by their names.
_JUDGED_BY_NAME = ("num_token_non_padded", "seq_lens_sum")
# Axes whose entries the contract oracle looks up among what each row owns.
_JUDGED_BY_OWNERSHIP = ("indices", "page_table")

Axis = Literal["requests", "tokens", "indptr", "indices", "scalar", "page_table"]
Selects = Literal["row", "slot", "page", "length", "offset", "state", "nothing"]


@dataclass(frozen=True, slots=True)
class PaddingRule:
    """What the padded part of a field must hold.

    `reserved`: the reserved row, page or slot of what the field selects. `fill`: exactly `value`;
    of offsets, as many entries as a padded row spans. `skip`: the sentinel `value`, which the
    engine promises not to follow. `free`: anything.
    """

    kind: Literal["reserved", "fill", "skip", "free"]
    value: int = 0


@dataclass(frozen=True, slots=True)
class Field:
    """One declared piece of replay metadata.

    A field without a declaration of its own counts as selecting memory. `source` says where the
    engine promises what is declared here.
    """

    name: str
    axis: Axis
    selects: Selects
    padding: PaddingRule
    rewritten: bool = False
    """Whether `prepare_replay` rewrites all that is used. Non-interference then poisons the buffer
    before it."""
    source: str = ""
    repeats: str = ""
    """What live entries must hold, as values or, for offsets, as their steps: an attribute of the
    logical batch or a function of `reference.metadata`, `TOLD`, `PADDED_OF_RANKS` or
    `ADAPTER_POOLS`. Well-known names need no declaration."""
    unjudged: str = ""
    """Why live entries cannot be judged; it replaces `repeats`, also that of a well-known name."""
    dtype: str = ""
    """The dtype that the engine promises, e.g. 'int32'; offsets are int32 unless declared
    otherwise. A captured buffer must keep its dtype in any case."""
    in_modes: tuple[tuple[Mode, PaddingRule], ...] = ()
    """Modes in which padded rows follow another rule than `padding`."""
    dummy: PaddingRule | None = None
    """What `Observation.dummy_rows` hold; None where they follow the rule of padded rows."""
    whole_rows: bool = False
    """Of a page table: whether its rows are shown whole. What lies behind the pages of a live row
    is then nobody's business, and passed over."""
    group: int = 0
    """The KV cache group whose pages, slots and lengths it names, by `case.group_configs`."""
    past: str = ""
    """Why the field depends on earlier steps by right, and where the engine says so; '' where it
    must not. History then passes over it, and memory of others is changed for it only where
    something else differs."""

    def __post_init__(self) -> None:
        if self.whole_rows and self.axis != "page_table":
            raise UsageError(
                f"field {self.name!r} of axis {self.axis!r} has whole_rows. Only rows of a "
                "page_table have entries behind their pages: drop it."
            )
        by_rule = self.name in _JUDGED_BY_NAME or self.axis in _JUDGED_BY_OWNERSHIP
        if not (by_rule or self.truth or self.unjudged):
            raise UsageError(
                f"field {self.name!r} declares nothing about its live entries. Name what they hold,"
                " e.g. repeats='seq_lens', or say why nothing judges them: unjudged='...'."
            )

    def padding_in(self, mode: Mode) -> PaddingRule:
        """The rule of padded rows in a mode."""
        return dict(self.in_modes).get(mode, self.padding)

    @property
    def truth(self) -> str:
        """What live entries must hold: as declared, else by the name; '' where nothing is said."""
        if self.unjudged:
            return ""
        return self.repeats or _REPEATED.get(self.name, "")

    @property
    def promised_dtype(self) -> str:
        """The declared dtype, else int32 for offsets; '' where none is promised."""
        return self.dtype or ("int32" if self.axis == "indptr" else "")
