"""What a stand-in without behaviour is made of."""

from __future__ import annotations

from types import SimpleNamespace

__all__ = ["Stub"]


class Stub(SimpleNamespace):
    """The attributes that the code under test reads of an object that is not there.

    A class of the target's own, because engines make plain namespaces too: where code asks for an
    attribute that is missing here, the target is at fault.
    """
