# make demo            GRPO and MemPO from one cold start, and a page that compares them
# make demo SCRATCH=1  the same from a cold start of your own (some minutes more)
# make test            lint, types and tests
# make lint            lint and types only
# make ui              Prefect, MLflow, a Ray head and a worker (mempo up); .venv/bin/mempo down ends them
# make clean           removes .venv and caches; runs and models stay
.POSIX:
.PHONY: demo test lint ui clean install

PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
SCRATCH =

# vLLM brings them, nothing here needs them, and where they are not of torch's own build (the CPU one)
# transformers cannot be imported beside them.
TIDY = $(BIN)/python -c 'import torchvision' 2>/dev/null || \
	$(BIN)/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec

demo: $(VENV)/.installed
	@if [ "$(SCRATCH)" = 1 ]; then \
		$(BIN)/mempo sft --preset demo --out models/atlas-sft-scratch && \
		$(BIN)/mempo ablate demo --set policy.model=models/atlas-sft-scratch; \
	else \
		$(BIN)/mempo ablate demo; \
	fi

test: lint
	$(BIN)/pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

ui: $(VENV)/.installed
	@$(BIN)/mempo up

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find conf flows infra mempo tasks tests -type d -name __pycache__ -prune -exec rm -rf {} +

install: $(VENV)/.installed

# The stamps are newer than pyproject.toml where what it asks for is there.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -e '.[test]'
	@$(TIDY)
	@touch $@
