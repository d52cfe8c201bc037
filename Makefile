# Two commands a newcomer needs: `make demo` and `make test`. Both make the environment in .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Workers of the tests: those with processes wait, so more than two cores; each imports all tests, for 4 s of CPU time
WORKERS := 6
# Tests are rewritten when they are imported, which takes longer than all else there: written once, as src is
export PYTHONDONTWRITEBYTECODE :=
# Threads of OpenBLAS spin while they wait for each other: beside busy workers a test with small matrices took 60 s for 4
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test test-slow test-all storms kernels modules lint regold bench clean

# Of 15,000 files of the libraries most are never imported: Python compiles the others when they are
PIP := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check

.venv/made: .venv/core
	$(PIP) -e '.[dev]'
	touch $@

# A tenth of it is all that a replay needs: its kernels are compiled on one core while the other installs the rest
.venv/core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

demo: .venv/made  ## a cluster with nine training jobs, then a comparison on a synthetic trace
	@mkdir -p out
	$(BIN)/brim demo
	$(BIN)/brim trace synth philly out/philly.parquet --num-jobs 3000 --seed 1 --cluster 32x8xV100 --load 0.9
	$(BIN)/brim sim compare out/philly.parquet --cluster 32x8xV100 --html out/compare.html --jobs out/jobs.parquet
	@echo "page: $(CURDIR)/out/compare.html"

# What all workers need is compiled once, beside the installation or the linters. Tests that measure time run alone,
# when all is compiled.
test:  ## lint, types, and every test that is not marked slow; what is absent here is skipped with the reason
	$(MAKE) --jobs 2 --output-sync lint kernels modules
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup -m "not slow and not timing" $(PYTEST)
	$(BIN)/pytest -q -m timing $(PYTEST) $$(grep -rl --include='*.py' mark.timing tests)

test-slow: .venv/made  ## the tests marked slow: seven minutes; continuous integration runs both
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup -m "slow and not timing" $(PYTEST)

test-all: PYTEST := --full
test-all: test test-slow storms  ## all tests with every case of large enumerations, and the storms

storms: .venv/made  ## 50 jobs through kills and resizes, and one through 1,000 of them: a quarter of an hour
	$(BIN)/python -m tests.elastic.many

kernels: .venv/core  # the path, because the installation beside it writes brim's own again
	PYTHONPATH=src $(BIN)/python -c 'from brim.cli import compiling; compiling.compile_first(compiling.kernels())'

modules: .venv/made  # a worker that does so itself takes 54 s of CPU time instead of 8; what cannot be imported, the tests show
	-$(BIN)/pytest -qq --collect-only >/dev/null

lint: .venv/made
	$(BIN)/ruff check .
	$(BIN)/mypy

regold: .venv/made  ## write the golden tables again; say why in the commit message
	$(BIN)/python -m tests.golden.regold

bench: .venv/made  ## docs/measurements: all of 2026-11-20-twin and 2026-11-22-speed, sizes of 2026-11-21-elastic. PEERS: folders of simulators
	cd benchmarks && ../$(BIN)/python replay_speed.py && ../$(BIN)/python replay_speed.py --growth \
	  && ../$(BIN)/python replay_speed.py --large && ../$(BIN)/python published.py $(PEERS) \
	  && ../$(BIN)/python round_latency.py && ../$(BIN)/python read_sacct.py && ../$(BIN)/python best_sizes.py --large

clean:
	rm -rf .venv out
