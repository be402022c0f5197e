# make demo    set up a virtual environment and train the handwritten digits example
# make test    set up and run the tests
# make lint    set up and run ruff and mypy
# make bench   set up and time tinyml beside its peers
# make clean   remove the virtual environment
#
# PYTHON=...   the Python to start from (3.10 or newer), DEVICE=... the device to run on,
# ARGS=...     further arguments of the example, pytest or the benchmarks

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := $(VENV)/.installed

.PHONY: demo test lint bench dev clean

demo: $(STAMPS)-examples
	$(BIN)/python examples/train_digits.py $(ARGS)

# A process has a core: where numpy multiplies by several threads, they wait for each other's.
test: $(STAMPS)-test
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

dev: $(STAMPS)-dev

lint: $(STAMPS)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMPS)-bench
	$(BIN)/python benchmarks/run.py $(ARGS)

clean:
	rm -rf $(VENV)

# One stamp for each set of extras: installed again only when the project files change.
# Who has all of dev has what tests need.
$(STAMPS)-%: setup.cfg pyproject.toml | $(STAMPS)
	$(PIP) install --quiet --editable ".[$*]"
	@touch $@ $(if $(filter dev,$*),$(STAMPS)-test)

# The stamp comes last: an environment that was only half made is made afresh.
$(STAMPS):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "tinyml needs Python 3.10 or newer, and '$(PYTHON)' is not: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); \
	  $(PYTHON) -m virtualenv --quiet $(VENV) 2>/dev/null; } || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' does not work: its part ensurepip is missing. Install it, e.g." >&2; \
	  echo "  Debian, Ubuntu:  sudo apt-get install python3-venv" >&2; \
	  echo "and run make again." >&2; exit 1; }
	@touch $@
