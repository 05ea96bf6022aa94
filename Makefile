# Two commands on a fresh machine do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STRICT := src/fusile/base src/fusile/hlo src/fusile/rewrite src/fusile/passes src/fusile/memory src/fusile/loops src/fusile/custom_calls

.PHONY: venv demo test test-all lint bench clean

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@echo "making $(VENV) with TensorFlow, JAX and the tools: a few minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[tf,jax,dev]'
	touch $@

demo: venv ## The article's two functions and Keras ResNet-50 beside TensorFlow and XLA
	$(BIN)/python examples/demo.py

test: venv ## The tests, on two processes
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-all: venv ## The tests and the long sweeps
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'slow or not slow'

lint: venv
	$(BIN)/ruff check src tests examples bench
	$(BIN)/ruff format --check src tests examples bench
	$(BIN)/mypy $(STRICT)

bench: venv
	$(BIN)/python bench/speed.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
