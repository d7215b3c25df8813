"""Opens a target inside guarded memory, warms it up and captures its graphs."""

from __future__ import annotations

import gc
from contextlib import suppress

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import attention_contents
from fuzzgraph.errors import ArenaFull
from fuzzgraph.execution.failures import Border
from fuzzgraph.execution.pool_writer import PoolWriter
from fuzzgraph.execution.pools import require_pools
from fuzzgraph.execution.process import spare_collections
from fuzzgraph.execution.session import OpenSession
from fuzzgraph.graphs import open_engine
from fuzzgraph.memory import (
    NAN_HOME,
    GuardedMemory,
    UnguardedBytes,
    capacities,
)
from fuzzgraph.ports import (
    Target,
    excuses_of,
    fp8_weights_of,
    is_isolated,
    rows_read_whole,
)
from fuzzgraph.run.spec import DEFAULT_SETUP, Setup
from fuzzgraph.targets.protocol import require_outputs, require_session


def open_session(
    target: Target,
    config: EngineConfig,
    setup: Setup = DEFAULT_SETUP,
) -> OpenSession:
    """Open, warm up and capture.

    Raises:
        SessionFailed: the engine raised at one of these stages.
        TargetFailed, HarnessFailed: the target or FuzzGraph itself failed.
        ArenaFull: the config is too large for guarded memory.
    """
    spare_collections()
    # Before the guard is active, or the tables of the harness would lie in this session's arena.
    for content in attention_contents(config):
        content.build()
    # The small arena first: dozens of sessions are open at a time, and few need a large one.
    *smaller, largest = capacities(torch.device(setup.device))
    for capacity in smaller:
        with suppress(ArenaFull):
            return _opened(target, config, setup, capacity=capacity)
        # Engines are full of reference cycles, and a device has all of an arena from the start.
        gc.collect()
    return _opened(target, config, setup, capacity=largest)


def _opened(
    target: Target,
    config: EngineConfig,
    setup: Setup,
    *,
    capacity: int,
) -> OpenSession:
    isolated = is_isolated(target)
    # Released engines get wider zones, because their overruns are not known in advance, and keep
    # their pool in snapshots, because they may read a graph's outputs again later. An engine that
    # writes a slot number for each page overruns a buffer by up to `page_size` times its size.
    memory = GuardedMemory(
        setup.device,
        zone_bytes=256 if isolated else 128,
        tail_factor=config.page_size,
        tail_cap=(64 if isolated else 2) << 10,
        keep_pool=isolated,
        gathered=setup.graphs != "recorder",
        stock_kernels=setup.stock_kernels,
        capacity=capacity,
        # NaN in all memory that nobody wrote: undefined rows must not look like numbers here.
        world=NAN_HOME if config.row_mixing == "nan" else 0,
    )
    engine = open_engine(setup.graphs, memory)
    unguarded = UnguardedBytes(memory)
    stage, border = "open", Border(target, memory=memory)
    try:
        with unguarded.during("open"), memory.intercept("engine"):
            session = target.open(config, engine)
        require_session(session)
        require_outputs(target, session, config)
        require_pools(session, config)
        border = Border(target, session, memory)
        opened = OpenSession(
            config,
            session,
            engine,
            memory,
            PoolWriter(session.pools, config, memory),
            border,
            unguarded,
        )
        # Between open and warm-up: from here on, whatever capture writes into the pools shows.
        opened.pool_writer.fill_unowned(0)
        stage = "warmup"
        with unguarded.during("warmup"), memory.intercept("scratch"):
            session.warm_up()
        stage = "capture"
        memory.let_kernels_read_whole(rows_read_whole(session))
        # "engine", because engines allocate buffers of each size here. What runs within a graph
        # is guarded as "graph" by the graph engine.
        with unguarded.during("capture"), memory.intercept("engine"):
            session.capture()
        opened.wait()
        memory.name_regions(session.roots)
    except ArenaFull:
        raise  # not the engine's fault while it opens: the caller tries a larger arena
    except BaseException as error:
        border.judge(error, stage)
        raise
    opened.pool_writer.use_region_names()
    opened.opening_hits = memory.zone_hits("capture")
    opened.opening_writes = opened.pool_writer.written_in_capture()
    opened.opening_accesses = opened.take_accesses()
    opened.opening_misuses = opened.take_misuses()
    opened.excuses = excuses_of(target)
    opened.fp8_weights = fp8_weights_of(target, config, memory.arena.device)
    with border.crossing("capture"):
        opened.remember_capture()
    return opened
