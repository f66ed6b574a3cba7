# make test    everything that CI runs: format, lint, types, tests
# make demo    see the memory work
# make docs    build the documentation
# All create .venv on first use; nothing but Python 3.11+ and the package index is needed.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: test demo docs bench results mutants fuzz format clean

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile --durations=5

demo: $(READY)
	@echo 'train a small model on built-in glyphs, score it, try what it remembers: about seven minutes; Ctrl-C saves'
	@$(BIN)/python examples/demo.py

# every warning is an error; the tests build it too
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'site/index.html opens as it is; with search: $(BIN)/python -m http.server --directory site'

# how far float32 drifts, and how fast each way to write is: minutes; on a GPU too where there is one
bench: $(READY)
	$(BIN)/python benchmarks/drift.py
	$(BIN)/python benchmarks/speed.py --out runs/speed.json --plot

# write the tables of the pages and draw their figures again, from the files in results/
results: $(READY)
	$(BIN)/python benchmarks/tables.py

# change the memory, the CPU kernel and the layer in so many random places each: how many does a test notice?
COUNT ?= 20
SEED  ?= 0
mutants: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group mutants
	$(BIN)/python benchmarks/mutants.py --count $(COUNT) --seed $(SEED)

# look for new counterexamples: files damaged at random, and the properties of the memory; tens of minutes
fuzz: $(READY)
	KANERVA_HYPOTHESIS=explore $(BIN)/pytest -p no:cacheprovider tests/test_broken_files.py tests/test_properties.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "kanerva needs Python 3.11 or newer, this is %d.%d: try make PYTHON=python3.11" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install 'pip>=25.1'
	$(BIN)/python -m pip install --constraint constraints.txt --group dev --editable '.[app,mazes,examples]'
	@# fresh and cached Numba code round differently: cache it now, in both precisions
	@echo 'compiling the fast write for this machine: about half a minute'
	@$(BIN)/python -c 'import torch, kanerva; [kanerva.DKM().to(d)(torch.rand(1, 2, 1, 28, 28, dtype=d)).kl_memory.sum().backward() for d in (torch.float32, torch.float64)]'
	@touch $@
