# Every target makes .venv first, if pyproject.toml changed since; nothing else on the machine is touched.

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed-$(shell cksum < pyproject.toml | tr ' ' '-')
TESTS ?= tests
# Three files at a time, since much of what a test takes is waiting, in the order of tests/conftest.py; a file's tests
# stay together, so that one Spark session serves them. PARALLEL= runs one by one.
PARALLEL ?= -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-all check format bench trial audit clean

help:
	@echo "make demo    the whole journey on this machine, then keeps running (ONCE=1: check it and stop)"
	@echo "make test    the tests that whoever changes a line waits for (TESTS=tests/things for a part)"
	@echo "make test-all  all tests: those, what needs Spark, Node or a browser, and short trials"
	@echo "make check   format, lint, types, architecture"
	@echo "make bench   benchmarks, as ratios"
	@echo "make trial   the long trials: kills, storms, fuzzing"
	@echo "make audit   known weaknesses of dependencies, and a bill of materials"
	@echo "make format  format and mend what can be mended"
	@echo "make clean   remove .venv and everything that tools left behind"

$(STAMP): pyproject.toml .ci/install
	@sh .ci/install $(VENV) $(STAMP)

demo: $(STAMP)
	@$(PY) -m skep demo $(if $(ONCE),--once)

test: $(STAMP)
	@$(PY) -m pytest -m "not trial and not long" $(PARALLEL) $(TESTS)

test-all: $(STAMP)
	@$(PY) -m pytest -m "not trial" $(PARALLEL) $(TESTS)

check: $(STAMP)
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy .
	@$(PY) -m pytest -q tests/test_architecture.py

format: $(STAMP)
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

bench: $(STAMP)
	@$(PY) -m bench

trial: $(STAMP)
	@$(PY) -m pytest -m trial $(TESTS)

audit: $(STAMP)
	@sh .ci/audit $(VENV)

clean:
	rm -rf $(VENV) build .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
