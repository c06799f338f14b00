# `make` alone lists what can be done. Needs Python 3.11 to 3.13 with venv.
#
#   PYTHON=python3.12     the Python that the environment is made from
#   TORCH_INDEX=ADDRESS   where pip takes torch from (README: the small build)
#   JAX_CUDA=13           a CUDA build of jax (12 or 13); the default is CPU
#   LAB_FLAGS=--no-browser   passed on to JupyterLab
#   BENCH=--small         passed on to the benchmark (BENCH=--help: its flags)

PYTHON ?= python3
VENV   ?= .venv
NB     ?=

PINS  := $(shell sed -n 's/^ *- *\([A-Za-z0-9_.-]*==[^ \#]*\).*/\1/p' environment.yml)
TORCH := $(filter torch==%,$(PINS))
JAX   := $(filter jax==%,$(PINS))
BIN   := $(abspath $(VENV))/bin
READY := $(VENV)/ready

# the kernel of a notebook is the first `python` on the path
export PATH := $(BIN):$(PATH)
# a cell may print ± under any locale
export PYTHONUTF8 := 1

.DEFAULT_GOAL := help
.PHONY: help setup data lab run test test-fast bench fresh save clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup: $(READY)  ## create the environment in .venv

# pip picks up where an interrupted set-up stopped; only a whole one leaves
# the file that this rule is named after
$(READY): environment.yml pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "this needs Python 3.11 to 3.13, found %d.%d: make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install --quiet $(PINS) -e .
	$(if $(JAX_CUDA),$(BIN)/python -m pip install --quiet 'jax[cuda$(JAX_CUDA)]$(patsubst jax%,%,$(JAX))')
	@$(BIN)/python -m pip check > /dev/null && $(BIN)/python -c 'from d2l_ext import jax, torch' \
	  || { echo 'The environment is not whole: remove $(VENV) and run make setup again.' >&2; exit 1; }
	@touch $@

data: $(READY)  ## fetch the text and the model that the notebooks read
	@$(BIN)/python -m d2l_ext.fetch_data

lab: data  ## open JupyterLab on your own copies of the notebooks, in work/
	@$(BIN)/python -m d2l_ext.student_copies
	cd work && $(BIN)/jupyter lab $(LAB_FLAGS)

run: data  ## execute every notebook into build/ (NB=01_cache_torch: only that)
	@$(BIN)/python -m d2l_ext.notebooks $(NB)

test: data  ## every check: style, unit tests, all notebooks with their numbers
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2 --dist loadfile tests
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=1800 notebooks

test-fast: $(READY)  ## no notebooks, no slow compiling: about three minutes
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not notebooks and not slow' tests

bench: data  ## time decoding, transformers' too, into build/bench (hours; BENCH=--small)
	@$(BIN)/python -m d2l_ext.bench $(BENCH)

fresh: $(READY)  ## set one copy aside and take a clean one (NB=01_cache_torch)
	@test -n '$(NB)' || { echo 'Which one? For example: make fresh NB=01_cache_torch' >&2; exit 1; }
	@$(BIN)/python -m d2l_ext.student_copies --fresh $(NB)

save: $(READY)  ## export what the notebooks mark with #@save
	@$(BIN)/python -m d2l_ext.save_export

clean:  ## remove build/: executed notebooks, benchmarks (work/ and data/ stay)
	rm -rf build
