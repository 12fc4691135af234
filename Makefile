# make demo            GRPO and MemPO from one cold start, and a page that compares them
# make demo SCRATCH=1  the same from a cold start of your own (some minutes more)
# make test            lint, types and tests
# make lint            lint and types only
# make lock            pins anew what pyproject.toml asks for; UPGRADE=1: at the newest versions
# make ui              Prefect, MLflow, a Ray head and a worker (mempo up); .venv/bin/mempo down ends them
# make clean           removes .venv and caches; runs and models stay
.POSIX:
.PHONY: demo test lint lock ui clean install

PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
SCRATCH =
UPGRADE =
CONSTRAINTS = infra/constraints.txt
CONSTRAINTS_CUDA = infra/constraints-cuda.txt

# vLLM brings them, nothing here needs them, and where they are not of torch's own build (the CPU one)
# transformers cannot be imported beside them.
TIDY = $(BIN)/python -c 'import torchvision' 2>/dev/null || \
	$(BIN)/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec

UV = $(BIN)/uv
COMPILE = $(UV) pip compile --quiet --no-annotate --custom-compile-command 'make lock' \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28

demo: $(VENV)/.installed
	@if [ "$(SCRATCH)" = 1 ]; then \
		$(BIN)/mempo sft --preset demo --out models/atlas-sft-scratch && \
		$(BIN)/mempo ablate demo --set policy.model=models/atlas-sft-scratch; \
	else \
		$(BIN)/mempo ablate demo; \
	fi

# A process for each of two cores; a file's tests share what they start, so they stay together.
test: lint
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# For Python 3.11 on Linux x86_64, which CI and the images use; the pins hold elsewhere too, and the few
# packages that only another Python asks for are not pinned. vLLM's CPU build names torch's CPU wheel,
# which is on torch's own index: for resolving, torch is torch, and what is tidied away after the
# install stays out (each names its torch itself). The lock of the CUDA image holds the same versions
# where its packages allow them, and else keeps its own.
lock: $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --quiet uv==0.13.9
	echo 'torch==2.13.0' | $(COMPILE) $(UPGRADE:1=--upgrade) --override - \
		--no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
		pyproject.toml infra/server.in --extra postgres --extra test -o $(CONSTRAINTS)
	@[ "$(UPGRADE)" != 1 ] || : > $(CONSTRAINTS_CUDA)
	sort -s -u -t = -k 1,1 $(CONSTRAINTS) $(CONSTRAINTS_CUDA) > $(CONSTRAINTS_CUDA).new
	mv $(CONSTRAINTS_CUDA).new $(CONSTRAINTS_CUDA)
	$(COMPILE) pyproject.toml --extra deepspeed --extra lora --extra postgres --extra vllm \
		-o $(CONSTRAINTS_CUDA)

ui: $(VENV)/.installed
	@$(BIN)/mempo up

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find conf flows infra mempo tasks tests -type d -name __pycache__ -prune -exec rm -rf {} +

install: $(VENV)/.installed

# The stamps are newer than pyproject.toml and the lock where what they ask for is there.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c $(CONSTRAINTS) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c $(CONSTRAINTS) -e '.[test]'
	@$(TIDY)
	@touch $@
