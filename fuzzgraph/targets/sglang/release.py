"""Brings the sglang of this process into memory, without its server and its kernels.

One process holds one release. Which one is decided before: the worker puts the folder of an
unpacked release first on `sys.path`, or a real install is found there.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.offline.import_stubs import allow_absent
from fuzzgraph.targets.offline.lazy_compile import compile_at_first_call
from fuzzgraph.targets.offline.torch_library import answer_on_cpu

__all__ = ["call_with_known", "engine_module", "has_module", "package_root", "release"]


def package_root() -> Path:
    """Folder of the sglang package that this process uses.

    Raises:
        AdapterUnavailable: there is none on `sys.path`.
    """
    loaded = sys.modules.get("sglang")
    if loaded is not None:
        return Path(next(iter(loaded.__path__)))
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise AdapterUnavailable(
            "there is no sglang in this Python. Name a release, for example --release 0.5.13, or "
            "install sglang."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def release() -> str:
    """Version of that package, '' where it does not say."""
    found = importlib.metadata.distributions(name="sglang", path=[str(package_root().parent)])
    return next((dist.version for dist in found), "")


def _interpret_triton() -> None:
    """Without a GPU, Triton kernels run in its interpreter, which is chosen at Triton's import."""
    if torch.cuda.is_available():
        return
    if "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    elif os.environ.get("TRITON_INTERPRET") != "1":
        raise AdapterUnavailable(
            "triton was imported before sglang and not in interpreter mode, so sglang's kernels "
            "cannot run on this machine without a GPU. Set TRITON_INTERPRET=1 before the start."
        )


def _refuse_other_paths() -> None:
    """Settings from outside would make a finding depend on whose shell it was found in."""
    foreign = sorted(name for name in os.environ if name.startswith("SGLANG_"))
    if foreign:
        raise AdapterUnavailable(
            f"the environment variable {foreign[0]}={os.environ[foreign[0]]!r} changes which code "
            f"of sglang runs. Unset it: env -u {foreign[0]} fuzzgraph ..."
        )


def _bare_package() -> None:
    """`sglang` as a package without its `__init__`, which would start on servers and clients."""
    if "sglang" in sys.modules:
        return
    _refuse_other_paths()
    os.environ["TQDM_DISABLE"] = "1"  # its capture loop draws a bar
    root = package_root()
    package = types.ModuleType("sglang")
    package.__path__ = [str(root)]
    package.__file__ = str(root / "__init__.py")
    package.__dict__["__version__"] = release()
    sys.modules["sglang"] = package


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """sglang prints hints about missing kernels to stdout, which belongs to our callers."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def has_module(name: str) -> bool:
    """Whether this release has the module, without importing it."""
    path = package_root().joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def call_with_known(function: Callable[..., Any], **arguments: Any) -> Any:
    """Calls it with those arguments that it has in this release."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})


def engine_module(name: str) -> Any:
    """The engine's module `name`, for example 'sglang.srt.mem_cache.memory_pool'.

    Raises:
        AdapterUnavailable: a module it needs is missing and not on the stand-in list.
    """
    if name in sys.modules:
        return sys.modules[name]
    _interpret_triton()
    _bare_package()
    allow_absent()
    compile_at_first_call()
    answer_on_cpu()
    try:
        with _quiet():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise AdapterUnavailable(_missing(name, error)) from None


def _missing(name: str, error: ModuleNotFoundError) -> str:
    if (error.name or "").partition(".")[0] == "sglang":
        return (
            f"sglang {release()} has no module {error.name!r}, which {name} needs. "
            "Use a release that has it: fuzzgraph targets lists them."
        )
    return (
        f"sglang {release()} cannot import {error.name!r}, which is neither installed nor on the "
        "list of stand-ins. Install the companions (make sglang), or pip install it."
    )
