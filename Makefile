# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two cores, oversubscribed, run four times slower: parallelism comes from processes.
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test test-slow lint format clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard learn2branch/*.c solver_plugins/*.c)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,dev]"
	@touch $@

demo: install
	$(BIN)/python -m pipelines.demo

test: install
	$(BIN)/python -m pytest

test-slow: install
	$(BIN)/python -m pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info */*.so
