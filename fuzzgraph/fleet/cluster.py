"""Puts shards on the machines of a Ray cluster: one that runs, or one started here for the run.

Ray only carries bytes and gives out CPUs and GPUs; it sets the variables by which CUDA and ROCm
show a process its own device. What the bytes say is `messages`'.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from fuzzgraph.errors import UsageError
from fuzzgraph.fleet.driver import ShardLost
from fuzzgraph.fleet.ports import descendants, listening, wait_until_free
from fuzzgraph.fleet.shard import Shard

_SILENT_SECONDS = 90.0
"""Without an answer for so long a machine counts as gone; starting a process there counts in."""
_OBJECTS = 100 << 20
"""Bytes of shared memory of a cluster of ours, Ray's least but for some: batches are small."""


@contextmanager
def ray_cluster(address: str, shards: int | None, device: str) -> Iterator[RayCluster]:
    """Join the cluster at an address, or start one here and take it down again.

    Args:
        address: 'HOST:PORT' or 'auto' of a running cluster; '' to start one.
        shards: how many; None for one per GPU (device cuda) or per core.

    Raises:
        UsageError: Ray is not installed, nothing answers there, or it has too few GPUs or cores.
    """
    ray = require_ray(address)
    try:
        if address:
            ray.init(address=address, **_QUIET)
        else:
            cores = shards or os.cpu_count() or 1
            ray.init(address="local", num_cpus=cores, object_store_memory=_OBJECTS, **_QUIET)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise UsageError(
            f"address={address!r}: no Ray cluster can be used ({_first_line(error)}). Name one "
            "that runs, or leave it out to start one here."
        ) from None
    family = set() if address else descendants(os.getpid()) - {os.getpid()}
    ports = listening(family)
    try:
        _require_loopback(family)
        yield RayCluster(ray, _counted(ray, shards, device), device)
    finally:
        ray.shutdown()
        wait_until_free(ports)


_ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0 before Ray is imported, it makes a node of Ray's listen on loopback only, on Linux too.
Ray resolves 127.0.0.1 as a node's address to that of the machine, so that naming it does not help.
Whoever reaches a port of Ray's may run code there."""
_QUIET: dict[str, Any] = {
    "include_dashboard": False,
    "log_to_driver": False,
    "configure_logging": False,
    "logging_level": "ERROR",
}


def _require_loopback(family: set[int]) -> None:
    """Refuse a cluster of ours that others could reach, whatever made it listen there."""
    if wide := listening(family, beyond_loopback=True):
        raise UsageError(
            f"Ray listens on port {min(wide)} beyond this machine, because it was imported before "
            "the fleet was started. Start the fleet in a process of its own."
        )


def require_ray(address: str = "") -> Any:
    """The package.

    Args:
        address: of the cluster to join; '' for one of ours, which nobody else is to reach.

    Raises:
        UsageError: it is not installed.
    """
    if not address:
        os.environ[_ONE_MACHINE] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UsageError(
            "a fleet needs the package ray. Install it: pip install 'fuzzgraph[fleet]'."
        ) from None
    return ray


def _counted(ray: Any, shards: int | None, device: str) -> int:
    kind = "GPU" if device == "cuda" else "CPU"
    there = int(ray.cluster_resources().get(kind, 0))
    wanted = there if shards is None else shards
    if not 0 < wanted <= there:
        raise UsageError(
            f"shards={wanted}: the cluster has {there} {kind}s, and a shard takes one. Ask for "
            "fewer, or join a larger cluster with --address."
        )
    return wanted


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


class RayCluster:
    """Starts shards as actors."""

    def __init__(self, ray: Any, shards: int, device: str) -> None:
        self.shards = shards
        self._ray = ray
        share = {"num_gpus": 1, "num_cpus": 0} if device == "cuda" else {"num_cpus": 1}
        self._actor = ray.remote(Shard).options(max_restarts=0, max_concurrency=3, **share)

    def start(self, order: bytes) -> RayMember:
        actor = self._actor.remote()
        actor.work.remote(order)
        return RayMember(self._ray, actor)


class RayMember:
    """One actor; asked without waiting for it, so that a slow machine holds up no other."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._question: Any = None
        self._since = 0.0

    def ask(self, told: bytes) -> bytes | None:
        if self._question is None:
            self._question, self._since = self._actor.drain.remote(told), time.monotonic()
        ready, _ = self._ray.wait([self._question], timeout=0.02)
        if not ready:
            if time.monotonic() - self._since > _SILENT_SECONDS:
                raise ShardLost(f"gave no answer for {_SILENT_SECONDS:g} s")
            return None
        try:
            return cast(bytes, self._ray.get(self._question))
        except self._ray.exceptions.RayError as error:
            raise ShardLost(_first_line(error)) from None
        finally:
            self._question = None

    def interrupt(self) -> None:
        self._actor.interrupt.remote()

    def end(self) -> None:
        self._ray.kill(self._actor)
