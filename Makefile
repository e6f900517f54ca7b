# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
L2B := $(abspath $(BIN))/l2b
# Two cores, oversubscribed, run four times slower: parallelism comes from processes.
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test test-slow lint format clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard learn2branch/*.c solver_plugins/*.c)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,dev]"
	@touch $@

# The main job end to end, small: instances, the expert's decisions, a policy, and its report.
demo: install
	mkdir -p demo
	cd demo && $(L2B) generate --problem setcover --preset tiny
	cd demo && $(L2B) collect --problem setcover --preset tiny
	cd demo && $(L2B) train --problem setcover --budget 60s
	cd demo && $(L2B) evaluate --problem setcover --preset tiny --policy dualattn --policy relpscost --seeds 2
	@echo "The report: demo/results/setcover-tiny/report.html"

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
