"""The four interfaces of FuzzGraph: graph engine, target, session, oracle.

`graphs/`, `targets/` and `oracles/` implement them; `execution` uses nothing else of these
packages. Other packages register targets and oracles by the entry points `fuzzgraph.targets` and
`fuzzgraph.oracles`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.errors import AdapterUnavailable, TargetFailed
from fuzzgraph.finding import Clause, Finding
from fuzzgraph.fp8_weights import Fp8Weights
from fuzzgraph.handover import Excuse
from fuzzgraph.observation import Engagement, Field, Observation, RunKind, StepRecord
from fuzzgraph.world import Batch

Outputs = TypeVar("Outputs")
OutputsCo = TypeVar("OutputsCo", covariant=True)
Part = TypeVar("Part")

_MEND = "Mend it in the target, then check it with 'fuzzgraph check-target'."


class CapturedGraph(Protocol, Generic[OutputsCo]):
    """A frozen list of device work: same addresses, shapes and scalars at every replay."""

    @property
    def outputs(self) -> OutputsCo:
        """What the captured function returned; its tensors are rewritten by each replay."""
        ...

    def replay(self) -> None:
        """Run the captured work again, without any Python of the engine."""
        ...

    @property
    def streams_apart(self) -> Sequence[int]:
        """Streams whose work of this graph may run later than it was given; see
        `memory.stream_order`."""
        ...

    @property
    def side_lines(self) -> Sequence[str]:
        """The engine's lines that gave work to streams beside the capturing one."""
        ...

    @property
    def engaged(self) -> Engagement:
        """Proof that the replays so far ran no Python of the engine and rewrote their outputs."""
        ...


class GraphEngine(Protocol):
    """Captures and replays: a device graph (CUDA and HIP) or the recorder."""

    name: str
    device: torch.device
    replayed: list[CapturedGraph[object]]
    """Graphs in the order of their replays, until the harness clears it."""

    @property
    def captured(self) -> int:
        """Graphs captured so far; a metadata target captures none."""
        ...

    @property
    def graphs(self) -> Sequence[CapturedGraph[object]]:
        """These graphs, in the order of capture."""
        ...

    def side_of(self, tensor: torch.Tensor) -> str:
        """'host' or 'device', as the engine asked for the memory; '' where that is unknown."""
        ...

    def capture(self, forward: Callable[[], Outputs], *, key: str) -> CapturedGraph[Outputs]:
        """Record one run of `forward` in the pool that all graphs of the session share.

        A device runs it once before that, so that libraries create their workspaces first.

        Raises:
            CaptureError: `forward` did what a device capture forbids.
        """
        ...

    def segment(
        self, *, key: str, continues: bool = False, prepares: bool = False
    ) -> AbstractContextManager[CapturedGraph[None]]:
        """Record what runs inside, for an engine that captures a forward piece by piece.

        Args:
            key: names the graph.
            continues: whether its replay uses what the piece before it left in the shared pool.
            prepares: whether this is code that prepares a step and works on the host too. What it
                does there is in no graph, and what it read there stays as it was at the capture.

        Raises:
            CaptureError: something did what a device capture forbids.
        """
        ...

    def held(self) -> AbstractContextManager[None]:
        """Inside, a device begins late with what it is given, and replays do not wait for it. On a
        CPU each call does its work."""
        ...

    def close(self) -> None:
        """Release what the captured graphs hold; none of them may be replayed again."""
        ...


@dataclass(frozen=True, slots=True)
class GroupPools:
    """The memory of one KV cache group, as `Pools` has it of the first one."""

    req_to_token: torch.Tensor | None = None
    kv_planes: tuple[torch.Tensor, ...] = ()


STATES = (
    "state",
    "conv_state",
    "delta_state",
    "delta_conv_state",
    "channel_state",
    "channel_conv_state",
    "linear_state",
    "gated_conv_state",
    "ring_cursors",
    "ring_deltas",
    "ring_keys",
    "ring_gates",
    "ring_starts",
    "ring_flags",
    "ring_delta_rests",
    "ring_key_rests",
)
"""Fields of `Pools` that are by state slot."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The engine's own memory into which the harness writes each step; None where it has none.

    Row, slot and state numbers are those of `world`: the engine must have room for the reserved and
    the trap ones in addition to the sizes in its config.
    """

    req_to_token: torch.Tensor | None = None
    """[rows, width] slot of each position of each request row."""
    kv_planes: tuple[torch.Tensor, ...] = ()
    """Each [num_slots, ...], or [pages, page_size, ...] where pages do not follow each other, in
    storage dtype, in the order of `content.Content.kv_planes`: views of the engine's own cache."""
    encoder_to_token: torch.Tensor | None = None
    """[rows, max_encoder_len] slot of each encoder position of each request row."""
    encoder_in_front: bool = False
    """Whether a row of `req_to_token` has the slots of the request's encoder, and its own behind
    them. Its width is then that of both."""
    encoder_planes: tuple[torch.Tensor, ...] = ()
    """Like `kv_planes`, of a layer of its own that attends to encoders: it alone holds their keys
    and values, and no others. Without such a layer they lie in `kv_planes`."""
    state: torch.Tensor | None = None
    """[state_slots, width] recurrent state, float32 as all states are."""
    conv_state: torch.Tensor | None = None
    """[state_slots, CONV_WIDTH - 1, columns] what the last tokens brought to the convolution
    before the recurrence, the newest last, in float32 or the config's dtype as for every layer; see
    `recurrent_layers`. In a config that verifies drafts there is room for draft_tokens - 1 more,
    unless `states_committed`; see `execution.state_planes`."""
    delta_state: torch.Tensor | None = None
    """[state_slots, heads, columns of a value, columns of a key] states of the gated delta rule, or
    the same with the numbers of a slot in one row. See `recurrent_layers.delta_rule`."""
    delta_conv_state: torch.Tensor | None = None
    """[state_slots, CONV_WIDTH - 1, columns] what the last tokens brought to the convolution
    before that rule, the newest last."""
    channel_state: torch.Tensor | None = None
    """[state_slots, heads, columns of a value, channels of a key] states of the delta rule with a
    decay by channel. See `recurrent_layers.channel_decay`."""
    channel_conv_state: torch.Tensor | None = None
    """[state_slots, CONV_WIDTH - 1, columns] what the last tokens brought to the
    convolution before that rule, the newest last."""
    linear_state: torch.Tensor | None = None
    """[state_slots, LINEAR_HEADS, LINEAR_WIDTH of a key, LINEAR_WIDTH of a value] states of linear
    attention. See `recurrent_layers.decayed_attention`."""
    gated_conv_state: torch.Tensor | None = None
    """[state_slots, GATED_TAPS - 1, GATED_COLUMNS] what the last tokens brought to a convolution
    without a recurrence behind it, the newest last. See `recurrent_layers.gated_convolution`."""
    more_states: tuple[Mapping[str, torch.Tensor], ...] = ()
    """Of each further layer with recurrent state: its tensors by the names of these fields. What
    `transposed_states` says is meant of them too."""
    ring_cursors: torch.Tensor | None = None
    """[state_slots] int32, how many tokens lie in the ring beside each state; with
    `state_ring_len`, None in an engine whose verifies leave none there."""
    ring_deltas: torch.Tensor | None = None
    """[state_slots, heads, state_ring_len, columns of a value] what tokens add to their states. See
    `recurrent_layers.state_ring`."""
    ring_keys: torch.Tensor | None = None
    """[state_slots, heads of keys, state_ring_len, channels] at which key."""
    ring_gates: torch.Tensor | None = None
    """[state_slots, heads, state_ring_len], or the same by channel: logarithms of the decays before
    that."""
    ring_starts: torch.Tensor | None = None
    """[state_slots] int32, the place of the first of them, where verifies have rings."""
    ring_flags: torch.Tensor | None = None
    """[state_slots] int8, 0 behind a step: whether a ring is being emptied."""
    ring_delta_rests: torch.Tensor | None = None
    """What `ring_deltas` in half precision do not say."""
    ring_key_rests: torch.Tensor | None = None
    rings_by_row: bool = False
    """Whether all of a ring lies by the request's row, and not by its state slot."""
    transposed_states: frozenset[str] = frozenset()
    """Fields of STATES whose last two dimensions the engine keeps the other way round: inputs of a
    convolution with those of a column together, states with the columns of a value together."""
    states_start_at_zero: bool = True
    """Whether the state of a request without tokens is zero by a promise of what calls the engine.
    Otherwise its slot holds what its last owner left there, and the engine must not read it."""
    states_committed: bool = False
    """Whether a verify leaves states as they are, and the one behind the last token that stays is
    put into its request's slot at the end of the step. Then a request has one slot, the first of
    those that a config with verifies gives it."""
    null_block: bool = False
    """Whether one reserved block is page 0 and a state as well. Padded rows may then write all of
    page 0; otherwise its first slot alone."""
    capture_slots: tuple[int, ...] = ()
    """Slots that graphs are captured on, when no request exists yet, beside the reserved one. A
    target that names some says in its code which lines of the engine choose them."""
    more_groups: tuple[GroupPools, ...] = ()
    """Of each further KV cache group, in the order of `case.group_configs`. Groups whose planes are
    the same views share that memory: a page then belongs to one of them at a time."""
    more_layers: tuple[tuple[torch.Tensor, ...], ...] = ()
    """Like `kv_planes`, of each layer that is not the first of its group, in the order of
    `case.attention_layers`. Layers of a group share its page map."""
    draft_layers: tuple[tuple[GroupPools, ...], ...] = ()
    """Of each draft layer behind the first: the planes of all groups. Layers share page maps. See
    `reference.draft_layers`."""

    @property
    def states(self) -> tuple[torch.Tensor, ...]:
        """What there is by state slot."""
        all_states = (getattr(self, name) for name in STATES)
        further = (each for layer in self.more_states for each in layer.values())
        return (*(each for each in all_states if each is not None), *further)

    @property
    def groups(self) -> tuple[GroupPools, ...]:
        """Those of the first group, then of each further one."""
        return (GroupPools(self.req_to_token, self.kv_planes), *self.more_groups)

    @property
    def layers(self) -> tuple[tuple[GroupPools, ...], ...]:
        """The groups of each draft layer; of other models, those of the one that there is."""
        return (self.groups, *self.draft_layers)

    @property
    def all_planes(self) -> tuple[torch.Tensor, ...]:
        """The KV planes of all groups and their layers, and those of encoders."""
        grouped = (plane for layer in self.layers for group in layer for plane in group.kv_planes)
        further = (plane for layer in self.more_layers for plane in layer)
        return (*grouped, *further, *self.encoder_planes)


class Session(Protocol):
    """One opened engine with its captured graphs.

    Calls come in this order: `warm_up`, `capture`, then for each step either `prepare_replay`,
    `replay`, `observe`, or `eager`, `observe`. Between steps the harness may restore the engine's
    memory and plain attributes to an earlier state.
    """

    pools: Pools
    fields: tuple[Field, ...]
    """Declared replay metadata, all modes together."""

    @property
    def roots(self) -> Mapping[str, object]:
        """Objects from which the engine's buffers are reached, to name them."""
        ...

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        """Outputs every step of `mode` must show; () for a metadata target."""
        ...

    def keeps_outputs(self, mode: Mode) -> bool:
        """Whether results handed out must survive later replays."""
        ...

    def warm_up(self) -> None: ...

    def capture(self) -> None:
        """Capture every size of every mode, largest first as engines do."""
        ...

    def prepare_replay(self, batch: Batch) -> None:
        """The engine's own host updates for `batch`: its padding, its metadata.

        A batch above the largest captured size comes here too, where the config lets such batches
        run eagerly: the session then does what its engine does, and `replay` nothing more.
        """
        ...

    def replay(self, batch: Batch) -> None: ...

    def eager(self, batch: Batch) -> None:
        """The same forward without a graph, unpadded."""
        ...

    def observe(self, batch: Batch) -> Observation:
        """Copies of what the last replay or eager run produced and used."""
        ...

    def results(self) -> Mapping[str, torch.Tensor]:
        """The tensors the engine handed out for the last step (not copies)."""
        ...

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """Name -> (tensor the engine would write now, data pointer frozen at capture).

        Asked from the end of `capture` on.
        """
        ...

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Declared field -> what the graph that `batch` is replayed on saw at its capture.

        What it should have seen is for the harness to say: see `reference.capture_truth`.
        """
        ...

    def close(self) -> None: ...


class Target(Protocol):
    """An engine under test."""

    name: str
    capabilities: Capabilities
    """The dimensions in which strategies draw cases for this target."""

    def unsupported(self, config: EngineConfig) -> str | None:
        """Why this target cannot express `config`, in one line; None if it can."""
        ...

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Session:
        """Start the engine. Called inside guarded memory: allocate here, not on import.

        Raises:
            AdapterUnavailable: the engine or its device is missing.
        """
        ...


def engine_packages(target: Target) -> tuple[str, ...]:
    """Import names of the packages and modules that hold the engine.

    A target lists them in `engine_packages`. Otherwise it is the released package in `package`, or
    else the package that defines the target.
    """
    target = unwrapped(target)
    return _named_packages(target) or (type(target).__module__.partition(".")[0],)


def names_its_engine(target: Target) -> bool:
    """Whether the target says where its engine lies."""
    return bool(_named_packages(unwrapped(target)))


def _named_packages(target: Target) -> tuple[str, ...]:
    named = getattr(target, "engine_packages", ()) or (getattr(target, "package", ""),)
    return tuple(name for name in named if name)


def unwrapped(part: Part) -> Part:
    """The target or session itself, if this is a wrapper that announces or times its calls."""
    inner: Part = getattr(part, "unwrapped", part)
    return inner


def defining_modules(part: Target | Session) -> tuple[str, ...]:
    """Names of the modules that define the class of a target or session, and what it derives from.

    Protocols and the engine's own classes are left to those that define them.
    """
    kind = type(unwrapped(part))
    names = [base.__module__ for base in kind.__mro__ if not getattr(base, "_is_protocol", False)]
    return (kind.__module__, *(name for name in names if name not in ("builtins", "typing", "abc")))


def is_isolated(target: Target) -> bool:
    """Whether the target is a released engine that runs only in a process of its own.

    Such a target has `isolated = True`.
    """
    return bool(getattr(target, "isolated", False))


def use_device(target: Target, device: str) -> None:
    """Have a target express what it can on this device, from now on.

    A target whose kernels take other shapes and dtypes on a GPU than in a CPU's interpreter has
    `device_capabilities`; without them it can express the same on both.
    """
    if device == "cpu":
        return
    refused: str = getattr(unwrapped(target), "not_on_device", "")
    if refused:
        raise AdapterUnavailable(
            f"target {target.name!r} does not run on a device: {refused}. Use --device cpu."
        )
    there: Capabilities | None = getattr(unwrapped(target), "device_capabilities", None)
    if there is not None:
        unwrapped(target).capabilities = there


def load_engine(target: Target) -> None:
    """Let a target import its engine, before the first case's deadline runs.

    A target does that in `load()`; without one the import falls into the first `open`.
    """
    load: Callable[[], None] | None = getattr(unwrapped(target), "load", None)
    if load is not None:
        load()


def probe_of(target: Target) -> Callable[[], None] | None:
    """A call that fails once the device's context is lost: a target's own `probe()`, or None."""
    found: Callable[[], None] | None = getattr(unwrapped(target), "probe", None)
    return found


def excuses_of(target: Target) -> tuple[Excuse, ...]:
    """The rules of handing over that the target excuses names from, in `excuses`."""
    found: tuple[Excuse, ...] = getattr(unwrapped(target), "excuses", ())
    return found


def fp8_weights_of(target: Target, config: EngineConfig, device: torch.device) -> Fp8Weights | None:
    """How kernels round softmax's weights to FP8, where keys and values are FP8: a target says it
    in `fp8_weights`. None where they do not."""
    declared: Fp8Weights | None = getattr(unwrapped(target), "fp8_weights", None)
    if declared is None or not config.kv_dtype.startswith("float8"):
        return None
    amd = config.platform == "rocm" or torch.version.hip is not None
    if declared.of_groups and config.num_q_heads == config.num_kv_heads and not amd:
        return None
    return declared.on(device)


def rows_read_whole(session: Session) -> tuple[torch.Tensor, ...]:
    """Rows of which a graph was handed the part that its capture needed, and whose rest is theirs
    as well: a kernel may read them to their end. A session names them in `rows_read_whole`."""
    found: tuple[torch.Tensor, ...] = getattr(unwrapped(session), "rows_read_whole", ())
    return found


def overlaps(session: Session) -> bool:
    """Whether the engine prepares a step while the one before it is on the device, as it is
    configured here. A session without `overlaps` does."""
    found: bool = getattr(unwrapped(session), "overlaps", True)
    return found


def drop_handed(session: Session) -> None:
    """Have the session forget what its engine handed over since its last `observe`, for a
    preparation that no replay follows. One that takes such down has a method `drop_handed`."""
    drop: Callable[[], None] | None = getattr(unwrapped(session), "drop_handed", None)
    if drop is not None:
        drop()


def why_unserved(target: Target, config: EngineConfig) -> str:
    """Why no server of the engine has this config, by the target's `unserved(config)`; '' where one
    may have it, or the target says nothing.

    Sizes do not count: those of a case are small on purpose.

    Raises:
        TargetFailed: the target's method raised, or answered neither a text nor None.
    """
    said: Callable[[EngineConfig], str | None] | None
    said = getattr(unwrapped(target), "unserved", None)
    if said is None:
        return ""
    try:
        answer = said(config) or ""
    except Exception as error:
        raise TargetFailed(
            f"target {target.name!r}: unserved() raised {type(error).__name__}: {error}. {_MEND}"
        ) from error
    if not isinstance(answer, str):
        raise TargetFailed(
            f"target {target.name!r}: unserved() returned {answer!r}, which is neither a text nor "
            f"None. {_MEND}"
        )
    return answer


def outputs_judged(target: Target) -> Mapping[Mode, str] | None:
    """Mode whose outputs the target's sessions promise -> for which cases, '' for all of them.

    A target says it in `outputs_judged`; None where it says nothing.
    """
    found: Mapping[Mode, str] | None = getattr(unwrapped(target), "outputs_judged", None)
    return found


def stood_in_for(target: Target) -> tuple[str, ...]:
    """What of the engine does not run behind the target, by its `stood_in_for`."""
    found: tuple[str, ...] = getattr(unwrapped(target), "stood_in_for", ())
    return found


class Oracle(Protocol):
    """Judges one clause. It names the runs it needs and never runs anything itself."""

    name: str
    clause: Clause
    needs: frozenset[RunKind]

    def judge(self, step: StepRecord) -> Iterable[Finding]: ...
