"""What stands in for an object that is not there."""

from __future__ import annotations

from types import SimpleNamespace

__all__ = ["Stub"]


class Stub(SimpleNamespace):
    """The attributes that the code under test reads of an object that is not there.

    A class of its own, because engines make plain namespaces too: an attribute that is missing here
    is a mistake in the target, and `execution.blame` knows it by the class.
    """
