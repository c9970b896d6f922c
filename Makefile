# make train       set up .venv, then train; ARGS chooses what (default: the digits): make train ARGS="mnist --epochs 1"
# make test        set up .venv, then run the tests, several files at a time; ARGS goes to pytest
# make test-slow   the same for the tests that take minutes
# make test-newest the tests that need no PyTorch, with the newest JAX on the newest Python that starts here, in
#                  .venv-newest; where that is too old for it they are skipped, with a sentence; ARGS goes to pytest
# make test-accelerators
#                  compile steps for GPUs and TPUs, which need not be there, in .venv-plan-cuda12 and .venv-plan-tpu (5 GB);
#                  skipped, with a sentence, where these cannot be installed; ARGS goes to pytest
# make parity      compare ours with PyTorch and other libraries, layer by layer, and print the table, then run the tests
#                  that make test skips without these libraries; ARGS goes to python -m tests.parity and leaves the tests out
# make lint        ruff and mypy
# make examples    execute the notebooks of examples/, with data in $TFDS_DATA_DIR; ARGS names some: encoder_decoder
# make docs        build the docs site in build/site, offline and strict; open build/site/index.html (its search needs a
#                  server: python -m http.server -d build/site)
# make clean       remove .venv, .venv-newest, .venv-plan-* and caches; runs/ stays
#
# PYTHON           the interpreter for .venv, 3.11 or newer (default: python3, or the newest python3.x that is found)
# PIP_ARGS         extra arguments for pip
# NEWEST           for test-newest: the interpreters to choose from (default: python3.12 and newer, and pyenv's)
# TORCH            empty: the tests run without PyTorch and skip what compares with it: make test TORCH=

.PHONY: help train test test-slow test-newest test-accelerators parity examples docs lint clean
.DELETE_ON_ERROR:

TORCH ?= yes
# The tests that load a library of the extra parity, or skip without it.
LIBRARY_TESTS = $(shell grep -lE '^ *(from|import) .*libraries|importorskip."(huggingface_hub|jax2onnx)' tests/test_*.py)
# One more than there are cores, because tests wait for files and processes; each holds up to 4 GB, so at most four.
PROCESSES := $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((n < 3 ? n + 1 : 4)))
IN_PROCESSES = -m pytest --numprocesses $(PROCESSES) --dist loadfile
PYTEST = .venv/bin/python $(IN_PROCESSES)
comma := ,
# Modules are compiled once and not by every process that a target starts, whatever the user's own setting.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(strip $(PYTHON)),)
PYTHONS := python3 python3.13 python3.12 python3.11 python
else
PYTHONS := "$(PYTHON)"
endif

# Makes .venv unless it is there and whole, then installs this checkout with the extras $(1).
define set-up
@.venv/bin/python -m pip --version >/dev/null 2>&1 || { \
	for python in $(PYTHONS); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			echo "$$python -m venv .venv"; exec "$$python" -m venv .venv; \
		fi; \
	done; \
	echo 'vit-jax needs Python 3.11 or newer and found none as' $(PYTHONS)': install one, or name it: make PYTHON=/path/to/python3.11' >&2; \
	exit 2; \
}
.venv/bin/python -m pip install -c constraints.txt $(PIP_ARGS) -e '.$(1)'
endef

NEWEST ?= python3 python3.12 python3.13 python3.14 python3.15 $(wildcard $(HOME)/.pyenv/versions/*/bin/python)

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# One stamp an install, written when it is complete. A larger one includes the smaller.
.venv/.base: pyproject.toml constraints.txt
	$(call set-up,)
	@touch .venv/.base

# Without PyTorch the tests that need it are skipped, and say so.
.venv/.test: pyproject.toml constraints.txt
	$(call set-up,[test])
	@test -z "$(TORCH)" || .venv/bin/python -m pip install -c constraints.txt $(PIP_ARGS) -e '.[torch]' || \
		echo 'make: PyTorch cannot be installed here, so tests that compare with it will be skipped; PIP_ARGS can name another index' >&2
	@touch .venv/.base .venv/.test

.venv/.dev: pyproject.toml constraints.txt
	$(call set-up,[dev])
	@touch .venv/.base .venv/.test .venv/.dev

.venv/.parity: pyproject.toml constraints.txt
	$(call set-up,[test$(comma)parity])
	@touch .venv/.base .venv/.test .venv/.parity

train: .venv/.base
	.venv/bin/python -m vit_jax.train $(ARGS)

test: .venv/.test
	$(PYTEST) $(ARGS)

test-slow: .venv/.test
	@.venv/bin/python -m pip install -c constraints.txt $(PIP_ARGS) -e '.[ray]' || \
		echo 'make: Ray cannot be installed here, so its test will be skipped' >&2
	$(PYTEST) -m slow $(ARGS)

# What starts is found out by starting it: a name on the path may be a shim of a Python that is not there. JAX, and what
# has to fit it, are not those of constraints.txt; no release of PyTorch satisfies torch<0, so nothing can bring it along.
test-newest:
	@found=$$(for python in $(NEWEST); do \
		"$$python" -c 'import sys, venv, ensurepip; v = sys.version_info; v < (3, 12) or v.releaselevel != "final" or print("%d.%d.%d" % v[:3], sys.executable)' \
			2>/dev/null; \
	done | sort -V | tail -n 1); \
	if test -z "$$found"; then \
		echo 'make: test-newest is skipped: the newest JAX needs Python 3.12 or newer, and none of these starts: $(NEWEST)'; \
		exit 0; \
	fi; \
	version=$${found%% *} python=$${found#* }; \
	echo "$$python is Python $$version"; \
	.venv-newest/bin/python -c "import sys; sys.exit('%d.%d.%d' % sys.version_info[:3] != '$$version')" 2>/dev/null || \
		"$$python" -m venv --clear .venv-newest || exit; \
	sed '/^# the numbers$$/,/^$$/d; /^orbax/d; /^tensorstore/d; /^chex/d' constraints.txt >.venv-newest/constraints.txt; \
	echo 'torch<0' >>.venv-newest/constraints.txt; \
	.venv-newest/bin/python -m pip install --upgrade -c .venv-newest/constraints.txt $(PIP_ARGS) \
		-e '.[test]' jax flax optax orbax-checkpoint && \
	.venv-newest/bin/python -c 'import jax, flax, platform as p; print("Python", p.python_version(), "jax", jax.__version__, "flax", flax.__version__)' && \
	.venv-newest/bin/python $(IN_PROCESSES) $(ARGS)

# Each compiler has an environment of its own: with both in one, jax looks for both kinds of devices.
test-accelerators: .venv/.base
	@status=0; for extra in plan-cuda12 plan-tpu; do \
		venv=.venv-$$extra; \
		$$venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m venv --clear $$venv || exit; \
		if $$venv/bin/python -m pip install -c constraints.txt $(PIP_ARGS) -e ".[test,$$extra]"; then \
			$$venv/bin/python -m pytest --numprocesses 2 tests/accelerators $(ARGS) || status=$$?; \
		else \
			echo "make: the compiler of the extra $$extra cannot be installed here, so its tests are skipped; PIP_ARGS can name another index" >&2; \
		fi; \
	done; exit $$status

parity: .venv/.parity
	.venv/bin/python -m tests.parity $(ARGS)
	@test -n "$(ARGS)" || $(PYTEST) -q $(LIBRARY_TESTS)

examples: .venv/.test
	.venv/bin/python -m pip install -c constraints.txt $(PIP_ARGS) -e '.[examples]'
	.venv/bin/python examples/execute.py $(ARGS)

docs: .venv/.test
	.venv/bin/python -m pip install -c constraints.txt $(PIP_ARGS) -e '.[docs]'
	.venv/bin/python docs/pages.py
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict
	.venv/bin/python -m pytest -q tests/test_site.py

lint: .venv/.dev
	.venv/bin/python -m ruff check
	.venv/bin/python -m ruff format --check
	.venv/bin/python -m mypy

clean:
	rm -rf .venv .venv-newest .venv-plan-cuda12 .venv-plan-tpu build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
