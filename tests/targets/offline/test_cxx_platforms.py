"""Which functions a source defines on a platform."""

from __future__ import annotations

import pytest

from fuzzgraph.targets.offline.cxx_platforms import lacks_method, on_platform

SOURCE = """
struct Kernel {
  static void everywhere(int n) { if (n) { return; } }
#ifdef USE_ROCM  // see above
  static void on_amd() {}
#else
  static void on_nvidia() {}
#endif
#if defined(USE_ROCM)
#ifndef SMALL
  static void large_on_amd() {}
#endif
#elif SGL_ARCH > 90
  static void newer() {}
#endif
#if !defined(USE_ROCM)
  static void not_on_amd() {}
#endif
  // static void remark() {}
};
struct Derived : Base {
};
void apart() {}
"""


@pytest.mark.parametrize(
    ("method", "on_cuda", "on_rocm"),
    [
        ("everywhere", True, True),
        ("on_amd", False, True),
        ("on_nvidia", True, False),
        ("large_on_amd", False, True),
        ("newer", True, False),
        ("not_on_amd", True, False),
        ("remark", False, False),
        ("apart", False, False),
    ],
)
def test_a_method_is_there_on_its_platform(method: str, on_cuda: bool, on_rocm: bool) -> None:
    for rocm, there in ((False, on_cuda), (True, on_rocm)):
        text = on_platform(SOURCE, {"USE_ROCM": rocm})
        assert lacks_method(text, "Kernel", method) != there


def test_what_is_not_known_is_taken_to_be_there() -> None:
    text = on_platform(SOURCE, {})
    assert not lacks_method(text, "Kernel", "on_amd")
    assert not lacks_method(text, "Derived", "inherited")
    assert not lacks_method(text, "Elsewhere", "method")
