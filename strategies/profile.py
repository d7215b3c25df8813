"""Search effort: sizes of cases, the pool of configs, the share of fresh ones.

What a target can express is `Capabilities`; what a campaign spends is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuzzgraph.errors import UsageError


@dataclass(frozen=True, slots=True)
class Profile:
    """Sizes and variety of generated cases; the target's capabilities bound every size too.

    A captured session is expensive, so configs are drawn from a pool of `pool` swarm configs,
    numbered `epoch * pool` onwards, and from outside it in `fresh` percent of the cases. Raise
    `epoch` by one from block to block (`block_size`) and the pool changes under the campaign.
    """

    name: str = "default"
    max_steps: int = 5
    max_batch: int = 8
    max_context_len: int = 32
    """Usual limit in tokens."""
    rare_context_len: int = 128
    """Limit in about one config in seven, and where a large page needs the room."""
    long_context_len: int = 16384
    """Limit in about one config in thirty, whose rows are few and narrow."""
    served: bool = False
    """Whether shapes are those of servers: for devices, whose kernels are compiled for them."""
    pool: int = 12
    fresh: int = 4
    epoch: int = 0

    def at(self, epoch: int) -> Profile:
        """The same profile with another pool of configs."""
        return replace(self, epoch=epoch)


DEFAULT = Profile()
CI = Profile(name="ci")
NIGHTLY = Profile(name="nightly", max_steps=8, max_batch=16, rare_context_len=512)
DEVICE = Profile(name="device", max_batch=256, served=True)
PROFILES = (DEFAULT, CI, NIGHTLY, DEVICE)


def profile_named(name: str) -> Profile:
    """Look a profile up.

    Raises:
        UsageError: no profile has that name; the message lists those that exist.
    """
    for profile in PROFILES:
        if profile.name == name:
            return profile
    names = ", ".join(known.name for known in PROFILES)
    raise UsageError(f"profile={name!r} is unknown. Use one of: {names}.")
