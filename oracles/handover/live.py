"""One tensor of two runs: which entries are live, and whether they mean the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fuzzgraph.case import group_configs
from fuzzgraph.compressor_layer import compression_ratio
from fuzzgraph.handover import Ints, Part, is_list
from fuzzgraph.observation import StepRecord
from fuzzgraph.oracles.handover.breach import Breach, Pair
from fuzzgraph.reference.pooled_keys import selected_keys
from fuzzgraph.rules import handover as rules
from fuzzgraph.world import Batch


def same_part(name: str, got: Part, want: Part, pair: Pair) -> Iterator[Breach]:
    """Live entries of a tensor, where its shape says which ones they are."""
    if got.values is None or want.values is None or not want.values.size:
        return
    if pair.plans_in(got, want):
        return
    live = live_part(got.shape, want.shape, pair, counted=is_list(got))
    if live is None or not live.entries or (live.bounds and not _begins_rows(want.values)):
        return
    one, two = got.values, want.values
    if live.axis:  # [few, tokens]: positions of several dimensions
        one, two = one.T, two.T
    if live.by_token and pair.replay.row_width:
        places = live_places(pair)
        one, two, live = one[places], two[places], live._replace(entries=len(places))
    if live.table:
        one, two = _below_lengths(pair.step, one, two, live.entries)
    for message in rules.live_entries_match(name, one, two, live=live.entries, other=pair.called):
        yield Breach("live", name, message, address=got.address)
        return
    yield from stays_meaning(name, one, two, live, pair)


class Live(NamedTuple):
    """Which entries of a tensor are live."""

    entries: int
    axis: int = 0
    table: bool = False
    by_token: bool = False
    """Whether there is one for each token that is handed over."""
    bounds: bool = False
    """Whether there is one more than rows or tokens, as of offsets."""


def _begins_rows(entries: Ints) -> bool:
    """Whether these may be offsets. A list of keys may have as many entries by chance, the last of
    them one that nobody wrote."""
    return not entries[0] and bool((np.diff(entries) >= 0).all())


_Sizes = tuple[int, int, int]
"""Live entries, padded ones of the replay, those of the other run."""


def live_part(
    got: tuple[int, ...], want: tuple[int, ...], pair: Pair, *, counted: bool = False
) -> Live | None:
    """The live entries of a tensor, from the sizes of both runs; None where sizes do not tell.

    An entry per row or token, or one more than that: the eager run has no others.

    Args:
        counted: whether a replay has as many entries as there are rows, live or padded; else it
            may hand over the whole of a static buffer.
    """
    if len(want) == 1 and want[0] in mask_cells(pair.step):
        return None
    one, two = pair.replay, pair.other
    rows = one.raw_bs, one.padded_bs, two.padded_bs
    return _live_part(got, want, rows, _tokens(pair), counted)


def _tokens(pair: Pair) -> _Sizes:
    one, two = pair.replay, pair.other
    if width := one.row_width:
        return one.raw_bs * width, one.padded_bs * width, two.padded_bs * width
    return one.num_tokens, one.padded_tokens, two.padded_tokens


def are_by_token(got: Part, want: Part, pair: Pair) -> bool:
    """Whether both runs' tensors have an entry for each token: positions of a row's first tokens
    look like offsets of one row."""
    return (got.shape[0], want.shape[0]) == _tokens(pair)[1:]


def live_places(pair: Pair) -> list[int]:
    """Where the batch's tokens lie among those that are handed over."""
    width, lens = pair.replay.row_width, pair.step.batch.new_lens.tolist()
    if not width:
        return list(range(pair.replay.num_tokens))
    return [row * width + at for row, length in enumerate(lens) for at in range(length)]


@lru_cache(maxsize=4096)
def _live_part(
    got: tuple[int, ...], want: tuple[int, ...], rows: _Sizes, tokens: _Sizes, counted: bool
) -> Live | None:
    # Asked for each tensor of a step, and most have one of a few shapes.
    if len(got) != len(want) or len(got) not in (1, 2):
        return None
    for axis in {0, len(want) - 1}:
        if axis and want[0] != got[0]:
            continue
        for by_token, (live, padded, theirs) in enumerate((rows, tokens)):
            for extra in (0, 1) if len(want) == 1 else (0,):  # offsets have one dimension
                # One entry may be a number for the whole batch.
                size = padded + extra if live + extra == 1 else live + extra
                fits = got[axis] in (size, padded + extra) if counted else got[axis] >= size
                if want[axis] == theirs + extra and fits:
                    table = len(want) == 2 and not axis
                    return Live(
                        live + extra, axis, table, bool(by_token) and not extra, bool(extra)
                    )
    return None


def _below_lengths(step: StepRecord, got: Ints, want: Ints, live: int) -> tuple[Ints, Ints]:
    """Tables with what lies beyond each row's keys blanked: there they may hold anything."""
    batch, page_size, freed = _group_of(step, want)
    width = min(got.shape[1], want.shape[1])
    one, two = got[:live, :width].copy(), want[:live, :width].copy()
    # A tree's own tokens may be in a table of their own, behind that of the past.
    tree = batch.tree_parents is not None and step.config.spec_topk > 1
    lens = batch.cached_lens if tree else batch.seq_lens
    if _lists_chunks(step, want):
        lens = (lens - 1) % step.config.attention_chunk_size + 1
    if step.config.pooled_block and batch.num_tokens == batch.raw_bs <= len(want):
        lens = _listed(step, want, lens)
    lens = lens if live == batch.raw_bs else lens[batch.token_rows]
    # A table of pages at least; of a table of slots only the first ones are then compared.
    used = -(-lens // page_size)
    if len(used) != live:
        return one, two
    beyond = np.arange(width) >= used[:, None]
    if len(freed) == live:
        beyond |= np.arange(width) < freed[:, None]
    one[beyond] = two[beyond] = 0
    return one, two


def _lists_chunks(step: StepRecord, table: Ints) -> bool:
    """Whether a table has the pages of each row's last chunk, of layers that attend in chunks."""
    chunk, page, batch = step.config.attention_chunk_size, step.config.page_size, step.batch
    if not chunk or len(table) < batch.raw_bs:
        return False
    for row, length in enumerate(batch.seq_lens.tolist()):
        pages = batch.pages.row(row)[(length - 1) // chunk * chunk // page : -(-length // page)]
        if not np.array_equal(table[row, : len(pages)], pages):
            return False
    return True


def _listed(step: StepRecord, table: Ints, lens: Ints) -> Ints:
    """Entries of each row in a table of a layer that selects keys: those that it has selected,
    unless the table lists the row's pages."""
    batch, page = step.batch, step.config.page_size
    selected = selected_keys(batch, step.config).any(1).sum(1)
    pages = [batch.pages.row(row)[: -(-length // page)] for row, length in enumerate(lens.tolist())]
    whole = [
        np.array_equal(table[row, : len(of_row)], of_row[: table.shape[1]])
        for row, of_row in enumerate(pages)
    ]
    return np.where(whole, lens, np.minimum(lens, selected))


def _group_of(step: StepRecord, table: Ints) -> tuple[Batch, int, Ints]:
    """(the batch, page size, leading pages of each row that a window freed) of the KV cache group
    whose pages a table holds; a table that holds none's counts as the first group's."""
    for batch, config in zip(step.batch.groups[1:], group_configs(step.config)[1:], strict=True):
        freed, used = batch.freed_pages(), -(-batch.seq_lens // config.page_size)
        rows = [
            (table[row, first:end], batch.pages.row(row)[first:end])
            for row, (first, end) in enumerate(zip(freed.tolist(), used.tolist(), strict=True))
            if row < len(table)
        ]
        if rows and all(np.array_equal(one, two) for one, two in rows):
            return batch, config.page_size, freed
    return step.batch, step.config.page_size, np.zeros(0, dtype=np.int64)


def stays_meaning(name: str, got: Ints, want: Ints, live: Live, pair: Pair) -> Iterator[Breach]:
    """What the batch shows to be offsets or lengths of rows is such for padded rows as well."""
    if got.ndim != 1 or live.axis:
        return
    replay, batch = pair.replay, pair.step.batch
    entries = want[: live.entries].tolist()
    # A list of tokens, such as positions, may begin as offsets do; it has another length.
    listed = len(got) in (replay.padded_bs, replay.padded_tokens)
    if live.entries == replay.raw_bs + 1 and not listed:
        if batch.positions[: live.entries].tolist() == entries:
            return  # by chance; those of padded tokens begin anew
        if entries[0] == 0 and np.diff(entries).tolist() in row_counts(pair.step):
            for message in rules.ascends(name, got[: replay.padded_bs + 1].tolist()):
                yield Breach("meaning", name, message)
    elif live.entries == batch.raw_bs and entries in row_counts(pair.step):
        if entries in _slots_of(pair.step) or entries == [*range(len(entries))]:
            return  # by chance; padded slots may be negative, and so may places in a list
        for message in rules.stays_counts(name, got[: replay.padded_bs].tolist()):
            yield Breach("meaning", name, message)


def _slots_of(step: StepRecord) -> Sequence[list[int]]:
    """Where each row of a decode stores: in the KV pool, among states, among compressed keys."""
    batch = step.batch
    groups = max(1, compression_ratio(step.config))
    found = (batch.slot_mapping, batch.state_slots, batch.slot_mapping // groups)
    return tuple(each.tolist() for each in found)


def are_offsets(part: Part, pair: Pair) -> bool:
    """Whether the other run's tensor holds where rows begin, one behind another.

    Zeros alone do not say so: slots that nothing is written to look the same. Nor does a list of as
    many keys as there are offsets: an engine may leave it unwritten, and then it holds anything.
    """
    size = pair.other.padded_bs + 1
    if part.values is None or part.shape != (size,) or size in key_counts(pair.step):
        return False
    entries = part.values.tolist()
    return not entries[0] and any(entries) and np.diff(entries).tolist() in row_counts(pair.step)


def row_counts(step: StepRecord) -> Sequence[list[int]]:
    """What is counted for each row of a batch: keys, new tokens, the past, pages."""
    return _counts_of(step.batch, step.config.page_size)


@lru_cache(maxsize=4)
def _counts_of(batch: Batch, page: int) -> Sequence[list[int]]:
    # Asked for each tensor of a step; a batch never changes.
    counts = (batch.seq_lens, batch.new_lens, batch.cached_lens)
    pages = [-(-lens // page) for lens in counts]
    return tuple(each.tolist() for each in (*counts, *pages))


def same_scalar(name: str, got: object, want: object, pair: Pair) -> Iterator[Breach]:
    """Numbers of a size are large enough; what says how to compute is the same."""
    if type(want) is not int:
        found = rules.says_the_same(name, got, want=want, other=pair.called)
    elif type(got) is int:
        found = rules.fits(name, got, want=want, other=pair.called)
    else:
        return
    for message in found:
        yield Breach("fits", name, message)


def mask_cells(step: StepRecord) -> set[int]:
    """How many cells a mask of the batch's drafts has, over all keys and over the drafts alone.

    Ranks pad an eager run's tokens to any count, which may be this one by chance.
    """
    batch = step.batch
    cells = {int((batch.new_lens * lens).sum()) for lens in (batch.seq_lens, batch.new_lens)}
    return cells - {batch.raw_bs, int(batch.new_lens.sum())}


def key_counts(step: StepRecord) -> set[int]:
    """How many keys, and pages of keys, all rows of a batch have together."""
    batch, page = step.batch, step.config.page_size
    lens = (batch.seq_lens, batch.cached_lens)
    return {int((-(-each // size)).sum()) for each in lens for size in (1, page)}
