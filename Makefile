# Every target does its own set-up: see scripts/environment. GNU make 3.81 (macOS) is enough.
.DEFAULT_GOAL := help
.PHONY: help test check coverage fix demo demo-live demo-log screenshots bench test-long reference docs java lock clean env-demo env-dev env-docs env-runtime lint types imports

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# One more than the cores that tests are meant for: many wait for a disk, a process or a clock.
WORKERS := 3

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: env-demo ## a shop, captured, kept in views, followed, killed and verified, in some minutes
	@$(BIN)/headwater demo

demo-live: env-demo ## the same until Ctrl-C
	@$(BIN)/headwater demo --live

demo-log: env-runtime ## show the log at work
	@$(BIN)/python examples/log_demo.py

test: env-dev lint types imports ## everything that must hold
	$(PYTEST) -n $(WORKERS) -m "not long" tests

check: env-dev lint types imports ## the inner loop: all but slow tests, in about a minute
	$(PYTEST) -n $(WORKERS) -m "not slow and not long" tests

coverage: env-dev ## run tests (TESTS=tests/log for a part) and print what lines and branches they cover
	$(BIN)/python scripts/measure_coverage.py --workers $(WORKERS) $(TESTS)

fix: env-dev ## format, and mend what the linter can
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

test-long: env-dev ## property tests with many more examples, and tests that take long
	HEADWATER_LONG=1 $(PYTEST) -n $(WORKERS) --timeout=3600 tests

bench: env-dev ## measure, and print the table; SUBJECT=ticks measures one subject
	$(BIN)/python -m benchmarks $(SUBJECT)

screenshots: env-dev ## take the pictures of the console for the documentation
	$(BIN)/python scripts/screenshots.py

reference: env-dev ## write docs/reference from the code
	$(BIN)/python scripts/reference.py

docs: env-docs ## build the documentation site in build/site; broken links fail
	@$(BIN)/python scripts/docs_site.py

java: env-runtime ## check that Java 17 or newer is here
	@$(BIN)/python scripts/java.py

lock: env-dev ## resolve the dependencies anew and write requirements/*.lock
	scripts/lock

clean: ## remove .venv, caches and build output
	rm -rf .venv demo benchmarks/results .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

env-dev:
	@scripts/environment dev

env-docs:
	@scripts/environment docs

env-runtime:
	@scripts/environment runtime

env-demo:
	@scripts/environment demo

lint: env-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env-dev
	$(BIN)/mypy

imports: env-dev
	$(BIN)/lint-imports
