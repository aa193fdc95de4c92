# make search | install | test | test-all | check | docs | figures | dist | sbom | audit | notebook | benchmarks
#      gpu-check | gpu-check-more | gpu-check-PART | gpu-search
# PYTHON makes the virtual environment; the GPU targets use it as it is, with nothing installed. CONSTRAINTS= takes the newest versions.
PYTHON ?= python3
CONSTRAINTS ?= -c constraints.txt
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GPU_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
GPU_OUT ?= /tmp/autotune-gpu

.PHONY: search install test test-all check format docs figures dist sbom audit notebook gpu-check gpu-check-more gpu-search benchmarks clean
.DEFAULT_GOAL := search

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[dev]'
	touch $@

install: $(STAMP)

# The main job on a built-in model and real text (the documentation that Python carries), on the GPU if there is one.
search: $(STAMP)
	$(BIN)/python tests/data/python_topics.py reports/data/topics.txt
	$(BIN)/autotune search gpt2-mini --global-batch-size 32 --sequence-length 64 --dataset reports/data/topics.txt \
	    --n-trials 10 --timeout 130s --output-dir reports

# Two tests at a time, each with one thread of torch. One that hangs fails, with what every thread was doing.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --timeout 600 -m "not nightly"

# Those that take long too; alone those that need all cores, or measure how well something is measured.
test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal --timeout 3600 -m "not alone"
	$(BIN)/python -m pytest -m alone

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Into docs/_build/html; every warning is an error, a link to nowhere too.
docs: $(STAMP)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -b html docs docs/_build/html

# Figures that README and the documentation quote, anew from the reports; then their pictures, which need Chromium.
figures: $(STAMP)
	$(BIN)/python docs/figures.py
	$(BIN)/python benchmarks/screenshots.py reports/gpt2-mini-causal-lm-gb48-cpu
	$(BIN)/python benchmarks/screenshots.py --service docs/images/service
	$(BIN)/python benchmarks/screenshots.py --tour docs/images/tour
	$(BIN)/python benchmarks/screenshots.py --card docs/_static/card.png

# The archives that would be released, in dist/.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m hatchling build

# Software bill of materials of what an installation with all extras has: CycloneDX, in build/.
sbom: $(STAMP)
	$(BIN)/python docs/dependencies.py sbom build/sbom.json

# Known vulnerabilities of the same packages; asks the package index.
AUDIT := build/audit
audit: $(STAMP)
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python docs/dependencies.py requirements > $(AUDIT)/requirements.txt
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement $(AUDIT)/requirements.txt

# The example notebook with its outputs, on an idle machine.
notebook: $(STAMP)
	$(BIN)/python docs/execute_notebook.py

# Four hours, on an idle machine.
benchmarks: $(STAMP)
	$(BIN)/python benchmarks/start_latency.py
	$(BIN)/python benchmarks/run_overhead.py
	$(BIN)/python benchmarks/fidelity.py reports/fidelity-cases
	$(BIN)/python benchmarks/promised.py reports/promised-searches
	$(BIN)/python benchmarks/stopping.py
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/search_seconds.py
	$(BIN)/python benchmarks/loaders.py
	$(BIN)/python benchmarks/v100_table.py
	$(BIN)/python benchmarks/published_ranks.py
	$(BIN)/python benchmarks/rank_memory.py # 20 GiB of memory
	$(BIN)/python benchmarks/replay.py build/replay.jsonl --seeds 0 9 --page replay "Searches replayed on tables that chose no constant"
	$(BIN)/python benchmarks/replay.py build/equal.jsonl --equal --drifts 0 0.02 0.1 --devices 1 4 --budgets 1 --seeds 0 34 \
	    --by noise drift devices --page equal "Searches in which all configurations are equally fast"
	$(BIN)/python benchmarks/sensitivity.py build/sensitivity.jsonl
	$(BIN)/python benchmarks/anytime.py
	$(BIN)/python benchmarks/decision_time.py
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/service.py
	$(BIN)/python benchmarks/memory_limits.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[benchmarks]'
	$(BIN)/python benchmarks/peers.py reports/peers

# Need a CUDA device; work with PYTHON=python3, no virtual environment and the project not installed. Warnings of other versions
# of the libraries fail no test there. Paged optimizers ask for managed memory, with which a full card can hang: left out. What is
# cut ends as by Ctrl-C, with its summary. Libraries that the machine lacks: PYTHONPATH=/tmp/site make gpu-check, after
# tests/gpu/evidence.sh has unpacked them there, or pip install --no-index --no-deps --target /tmp/site .whl/*.whl
GPU_PYTEST = PYTHONPATH="$(CURDIR):$$PYTHONPATH" timeout -s INT -k 20 $(1) "$(GPU_PYTHON)" -m pytest -W default -p no:cacheprovider -v --durations=0 \
    $(2) -m $(3) -k "not paged and not pages_of" || test $$? -eq 5 # 5: all skipped, no GPU

# The core, in five minutes at most.
gpu-check:
	$(call GPU_PYTEST,300,tests/gpu/test_cuda.py,"gpu and not gpu_more")

# The rest in parts of nine minutes at most, for machines on which a command may take ten: the whole
# search on the card, kernels and compiling, settings, and own Trainers, exports, ranks and the guides' table.
GPU_PARTS = card kernels settings others
GPU_FILES_card = tests/gpu/test_cuda.py
GPU_FILES_kernels = tests/gpu/test_kernels_cuda.py
GPU_FILES_settings = tests/gpu/test_settings_cuda.py tests/gpu/test_four_bits.py tests/gpu/test_batches_cuda.py
GPU_FILES_others = $(filter-out $(GPU_FILES_card) $(GPU_FILES_kernels) $(GPU_FILES_settings),$(wildcard tests/gpu/test_*.py))
gpu-check-more: $(GPU_PARTS:%=gpu-check-%)

$(GPU_PARTS:%=gpu-check-%): gpu-check-%:
	$(call GPU_PYTEST,540,$(GPU_FILES_$*),"gpu and gpu_more")

# Eight minutes at most; the archive, in the folder OUT or in reports, is written also if the search is cut. --timeout is the
# whole search's.
gpu-search:
	status=0; HF_HUB_OFFLINE=1 PYTHONPATH="$(CURDIR):$$PYTHONPATH" timeout -k 20 450 "$(GPU_PYTHON)" -m autotune search bert-large \
	    --task sequence-classification --sequence-length 512 --global-batch-size 64 --device cuda --fix pin_memory=true \
	    --timeout 400s --n-trials 16 --output-dir "$(GPU_OUT)" || status=$$?; \
	name=$$(basename "$(GPU_OUT)"); mkdir -p "$(GPU_OUT)" "$(or $(OUT),reports)" && tar czf "$(or $(OUT),reports)/$$name.tgz" \
	    --exclude=study.db* --exclude=log.txt -C "$$(dirname "$(GPU_OUT)")" "$$name"; exit $$status

clean:
	rm -rf $(VENV) build dist docs/_build docs/_generated docs/commands .pytest_cache .mypy_cache .ruff_cache
