# The two to know: `make fuzz` and `make test`. Both set up what they need.
# Plain make and POSIX sh. PYTHON picks the interpreter, VENV the environment's folder.

PYTHON ?= python3
VENV ?= .venv
# How long `make fuzz` fuzzes the healthy engine, e.g. make fuzz TIME=10m
TIME ?= 60s
# The bug that `make fuzz` plants first, one of `fuzzgraph faults --list`
DEMO ?= sglang-pr-24587-kv-indices-in-pages
# Processes of `make test`
JOBS ?= 2
# Which tests, as pytest's -m takes it, e.g. make test MARKS=sglang
MARKS ?= not ray and not slow
# Versions of everything: constraints/dev.txt, oldest.txt or newest.txt
CONSTRAINTS ?= constraints/dev.txt
# The folder that `make gpu` writes
GPU_OUT ?= reports/runs/gpu
# More options for pip, e.g. the index from which a machine without a GPU takes its torch
PIP_FLAGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)
READY := $(VENV)/.fuzzgraph-ready
SGLANG_READY := $(VENV)/.sglang-ready
# Engines, and the releases of each that tests run on
ENGINES := sglang vllm flashinfer
RELEASES_sglang := 0.5.12 0.5.13 0.5.23
RELEASES_vllm := 0.15.1 0.17.1 0.19.1 0.20.2 0.25.1 0.33.0
RELEASES_flashinfer := 0.6.3 0.6.18 0.7.2 0.7.4

# Tiny tensors: more threads than one per process only wait for each other.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup fuzz test test-all check fleet engines $(ENGINES) triton-versions gpu bench-lanes bench-compiled bench-speed bench-isolation bench-fleet soak clean

help:
	@echo "make fuzz         find a planted bug, then fuzz the healthy built-in engine for TIME=$(TIME)"
	@echo "make test         lint, types, import floors, tests but for the slow ones"
	@echo "make test-all     the same with the slow ones"
	@echo "make check        lint, types, import floors only"
	@echo "make fleet        tests of a fleet on a real Ray cluster and a real Redis server"
	@echo "make sglang       fetch real sglang releases and what they import"
	@echo "make vllm         fetch real vLLM releases and what they import"
	@echo "make flashinfer   fetch real FlashInfer releases"
	@echo "make engines      all three"
	@echo "make triton-versions  tests of the lanes under each tested Triton; writes reports/triton.md"
	@echo "make gpu          what a GPU shows, into GPU_OUT=$(GPU_OUT); with PYTHON's own torch, no network"
	@echo "make bench-lanes  Triton kernels over lanes; writes reports/lanes.md"
	@echo "make bench-compiled  targets' Triton kernels, compiled without a device; writes reports/compiled.md"
	@echo "make bench-speed  cases per second; writes reports/speed.md"
	@echo "make bench-fleet  two shards against one; writes reports/fleet.md"
	@echo "make bench-isolation  cost of a worker; writes reports/isolation.md"
	@echo "make soak         40 minutes of kills and deaths; writes reports/soak.md"
	@echo "make setup        only create $(VENV)"
	@echo "make clean        remove $(VENV), caches and the output of runs"

setup: $(READY)

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "setup: $(PYTHON) is older than Python 3.10 or missing. Name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "setup: $(PYTHON) cannot create an environment in $(VENV). On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "setup: installing torch into $(VENV) (the largest part; once)"
	@$(PIP) -c $(CONSTRAINTS) $$(grep -E '^(torch|triton)==' $(CONSTRAINTS))
	@echo "setup: installing FuzzGraph and what it needs"
	@$(PIP) -c $(CONSTRAINTS) -e ".[dev]"
	@touch $@

# A healthy engine shows nothing, so the first thing to see is a finding. Exit code 1 means that the
# planted bug was found; with any other the demonstration has failed, and so has the target.
fuzz: $(READY)
	@echo "fuzz: 1 of 2, a demonstration: the built-in engine with a bug planted that a real engine had"
	@$(BIN)/fuzzgraph run --fault $(DEMO) --findings 1 --seed 1; code=$$?; \
	  test $$code -eq 1 || { echo "fuzz: the demonstration failed: exit code $$code, expected 1 (the planted bug is found)" >&2; exit 1; }
	@echo
	@echo "fuzz: That was the demonstration: the bug was planted, and its finding is expected."
	@echo "fuzz: 2 of 2, the healthy built-in engine for $(TIME); expect no findings"
	@$(BIN)/fuzzgraph run --target builtin --time $(TIME)
	@echo "fuzz: for the command fuzzgraph by itself: . $(BIN)/activate"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	@test -e $(SGLANG_READY) || \
	  echo "test: 'make sglang' has not been run here, so the tests on real sglang releases will be skipped."
	$(BIN)/python -m pytest -n $(JOBS) -m "$(MARKS)"
	@test -e $(SGLANG_READY) || \
	  echo "test: tests on real sglang releases were skipped; run 'make sglang' once to include them."

test-all:
	@$(MAKE) test MARKS="not ray"

# Workers, driver and Redis server of a real cluster are killed; about two minutes, one at a time.
fleet: $(READY)
	@$(PIP) -c $(CONSTRAINTS) -c constraints/fleet.txt -e ".[fleet]"
	$(BIN)/python -m pytest -n 0 tests/fleet

engines: $(ENGINES)

$(ENGINES): %: $(VENV)/.%-ready

$(VENV)/.%-ready: $(READY) constraints/%.txt
	@echo "$*: installing what its releases import"
	@$(PIP) -c $(CONSTRAINTS) -c constraints/$*.txt -e ".[$*]"
	$(BIN)/fuzzgraph releases fetch $(RELEASES_$*:%=$*==%)
	@touch $@

# Fetches each Triton (some 200 MB) into a folder of its own outside; takes a quarter of an hour.
triton-versions: $(READY)
	$(BIN)/python benchmarks/triton_versions.py --write reports/triton.md

# On a machine with a GPU, by the Python that has torch for it: nothing is installed. GPU_FLAGS=--emulated
# runs the same on a CPU.
gpu:
	@$(PYTHON) -c 'import importlib.metadata as here, torch; here.version("fuzzgraph")' 2>/dev/null || { echo "gpu: $(PYTHON) has no torch or no FuzzGraph; \
	name the Python that has torch for the GPU, PYTHON=..., and install FuzzGraph there: pip install ." >&2; exit 2; }
	$(PYTHON) benchmarks/gpu.py --out $(GPU_OUT) $(GPU_FLAGS)

# VIZ names the Python of an environment with triton-viz beside the same torch and Triton.
bench-lanes: $(READY)
	$(BIN)/python benchmarks/lanes/run.py --sweep 100 $(if $(VIZ),--viz $(VIZ)) --write reports/lanes.md

# What each target said is kept in OUT, so that a run that was cut off goes on.
OUT ?= fuzz-out/compiled
bench-compiled: $(READY)
	$(BIN)/python benchmarks/compile_offline.py --cases 3 --most 1 --out $(OUT) --write reports/compiled.md

bench-speed: $(READY)
	$(BIN)/python benchmarks/speed.py --write reports/speed.md

# These want a machine without other work.
bench-isolation: $(READY)
	$(BIN)/python benchmarks/isolation.py --write reports/isolation.md

bench-fleet: $(READY)
	@$(PIP) -c $(CONSTRAINTS) -c constraints/fleet.txt -e ".[fleet]"
	$(BIN)/python benchmarks/fleet.py --write reports/fleet.md

soak: $(READY)
	@$(PIP) -c $(CONSTRAINTS) -c constraints/fleet.txt -e ".[fleet]"
	$(BIN)/python benchmarks/soak.py --minutes 30 --write reports/soak.md

clean:
	rm -rf $(VENV) build dist reports/runs fuzz-out fuzz-state .fuzzgraph .hypothesis \
	  .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
