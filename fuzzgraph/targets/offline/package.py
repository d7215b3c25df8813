"""One release of an engine, brought into memory without its server and its kernels.

One process holds one release. Which one is decided before: the worker puts the folder of an
unpacked release first on `sys.path`, or an installed one is found there.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import platform
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzzgraph.errors import AdapterUnavailable, FuzzGraphError
from fuzzgraph.targets.offline.import_stubs import Fill, allow_absent, leave_out
from fuzzgraph.targets.offline.lazy_compile import compile_at_first_call
from fuzzgraph.targets.offline.torch_library import operators_on_cpu
from fuzzgraph.targets.packages import distribution_of

__all__ = ["EnginePackage", "call_with_known"]


@dataclass(frozen=True)
class EnginePackage:
    """The package `name` that this process uses, wherever it comes from."""

    name: str
    """Import name."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Modules that may be missing, each with its reason: see `import_stubs`."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Modules that are not imported even where they are there, each with its reason."""
    contents: Mapping[str, Fill] = field(default_factory=dict)
    """Stubbed module -> fills it with what the engine reads at import."""
    bare: bool = False
    """Whether the package's own `__init__`, which starts servers and clients, is left out."""
    settings: str = ""
    """Prefix of environment variables that change which code of the engine runs; '' for none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set before the first import, for the life of the process."""
    example: str = ""
    """A release that messages name."""
    companions: str = "pip install it"
    """How a module that is neither installed nor stubbed is installed."""

    def root(self) -> Path:
        """Folder of the package.

        Raises:
            AdapterUnavailable: there is none on `sys.path`.
        """
        loaded = sys.modules.get(self.name)
        if loaded is not None:
            return Path(next(iter(loaded.__path__)))
        spec = importlib.util.find_spec(self.name)
        if spec is None or not spec.submodule_search_locations:
            named = f", for example --release {self.example}," if self.example else ""
            raise AdapterUnavailable(
                f"there is no {self.name} in this Python. Name a release{named} or install "
                f"{self.name}."
            )
        return Path(next(iter(spec.submodule_search_locations)))

    def release(self) -> str:
        """Version of the package, '' where it does not say."""
        root = self.root()
        found = importlib.metadata.distributions(
            name=distribution_of(self.name), path=[str(root.parent)]
        )
        return next((dist.version for dist in found), "") or _written_version(root)

    def has_module(self, name: str) -> bool:
        """Whether this release has the module, without importing it."""
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, "__file__", None):
            return True  # asked several times a step; a stand-in comes from no file
        return _is_module(self.root().joinpath(*name.split(".")[1:]))

    def module(self, name: str) -> Any:
        """The engine's module of this dotted name, imported.

        Raises:
            AdapterUnavailable: a module it needs is missing and may not be absent, or its own code
                fails at import.
        """
        if name in sys.modules:
            return sys.modules[name]
        self._interpret_triton()
        self._begin()
        allow_absent(self.absent, self.contents)
        leave_out(self.left_out)
        compile_at_first_call()
        operators_on_cpu(self.name)
        try:
            with _quiet():
                return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise AdapterUnavailable(self._missing(name, error)) from None
        except FuzzGraphError:
            raise
        except Exception as error:
            raise AdapterUnavailable(self._unfit(name, error)) from error

    def load(self, *names: str) -> None:
        """Import modules, and take their objects out of the garbage collector's passes.

        Engines collect around every capture; over the half million objects of their own imports
        that takes longer than all the rest.
        """
        if _loaded.issuperset(names):
            return
        # Tensors that imports make belong to the process, not to the session that came first.
        with _disable_current_modes():
            for name in names:
                self.module(name)
        gc.collect()
        gc.freeze()
        _loaded.update(names)

    def _interpret_triton(self) -> None:
        """Without a GPU, Triton kernels run in its interpreter, chosen at Triton's import."""
        if torch.cuda.is_available():
            return
        if "triton" not in sys.modules:
            os.environ["TRITON_INTERPRET"] = "1"
        elif os.environ.get("TRITON_INTERPRET") != "1":
            raise AdapterUnavailable(
                f"triton was imported before {self.name} and not in interpreter mode, so the "
                "engine's kernels cannot run on this machine without a GPU. Set TRITON_INTERPRET=1 "
                "before the start."
            )

    def _begin(self) -> None:
        """Before the package's first import."""
        if self.name in sys.modules:
            return
        self._refuse_settings()
        os.environ.update(self.environment)
        if not self.bare:
            return
        root = self.root()
        package = types.ModuleType(self.name)
        package.__path__ = [str(root)]
        package.__file__ = str(root / "__init__.py")
        package.__dict__["__version__"] = self.release() or _NO_VERSION
        sys.modules[self.name] = package

    def _refuse_settings(self) -> None:
        """Settings from outside would make a finding depend on whose shell it was found in."""
        if not self.settings:
            return
        own = self.environment  # a process that this one starts has these
        foreign = sorted(
            name
            for name, value in os.environ.items()
            if name.startswith(self.settings) and own.get(name) != value
        )
        if foreign:
            raise AdapterUnavailable(
                f"the environment variable {foreign[0]}={os.environ[foreign[0]]!r} changes which "
                f"code of {self.name} runs. Unset it: env -u {foreign[0]} fuzzgraph ..."
            )

    def _missing(self, name: str, error: ModuleNotFoundError) -> str:
        if (error.name or "").partition(".")[0] == self.name:
            return (
                f"{self.name} {self.release()} has no module {error.name!r}, which {name} needs. "
                "Use a release that has it: fuzzgraph targets lists them."
            )
        return (
            f"{self.name} {self.release()} cannot import {error.name!r}, which is neither "
            f"installed nor on the list of import stubs. Install it: {self.companions}."
        )

    def _unfit(self, name: str, error: Exception) -> str:
        """The engine's own code fails at import, mostly for want of another torch or Python."""
        said = " ".join(str(error).split())
        return (
            f"{self.name} {self.release()} cannot be imported here: {type(error).__name__}: {said}"
            f"{self._place(error)}, wanted for {name}. It may need another torch than "
            f"{torch.__version__}, or another Python than {platform.python_version()}."
        )

    def _place(self, error: Exception) -> str:
        """The last line of the engine's own that was run, in words; '' where none was."""
        run = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            run.append((error.filename, error.lineno))
        folder = self.root().parent
        own = [(path, line) for path, line in run if Path(path).is_relative_to(self.root())]
        return f" at {Path(own[-1][0]).relative_to(folder)}:{own[-1][1]}" if own else ""


def _written_version(root: Path) -> str:
    """What a tree without metadata writes down of its version; '' for nothing."""
    for name in ("_version.py", "version.py"):
        path = root / name
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            written = _VERSION.search(text)
            if written is not None:
                return written[1]
    return ""


_VERSION = re.compile(r"""^(?:__version__|version)\b[^"'\n]*=\s*["']([^"'\n]+)["']""", re.MULTILINE)
_NO_VERSION = "0.0.0.dev0"
"""Engines compare versions at import; this is what build tools write where they know none."""
_loaded: set[str] = set()
"""Modules that `EnginePackage.load` has imported in this process."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Engines print hints about missing kernels to stdout, which belongs to our callers."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


# Asked at every step, and no release changes while a process runs it.


@functools.lru_cache(maxsize=1024)
def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@functools.lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def call_with_known(function: Callable[..., Any], **arguments: Any) -> Any:
    """Calls it with those arguments that it has in this release."""
    # By the engine's own function: a method, or a wrapper of ours, would keep its session alive.
    own = inspect.unwrap(function)
    own = getattr(own, "__func__", own)
    lasting = isinstance(own, type) or (isinstance(own, types.FunctionType) and not own.__closure__)
    known = _parameters(own) if lasting else inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})
