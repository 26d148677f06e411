# Every target does its own set-up. `make help` lists them.
SHELL := /bin/sh
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-unit lint format typecheck proto schemas bench fuzz soak constraints clean controlplane playground bench-operator goldens chart dashboards

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install everything into .venv (other targets do it when needed)
	@scripts/setup.sh

demo: setup ## Run a tiny Qwen2.5-Omni as three processes: text, audio and image in, text and speech out
	@.venv/bin/omnipipe demo --out demo-output

test: setup controlplane ## All tests, with the coverage of what must be covered
	@GRPCURL="$$(scripts/grpcurl.sh)" && export GRPCURL && rm -f .coverage .coverage.* && \
	  $(PY) -m pytest -q -n $${WORKERS:-3} --dist loadgroup --no-loadscope-reorder --cov --cov-report= --durations=25
	@$(PY) scripts/check_coverage.py

controlplane: setup ## Build etcd, the API server, controllers, kwok and helm for the tests (once, about 9 minutes)
	@PYTHONPATH=tests $(PY) -m support.controlplane.binaries >/dev/null

playground: controlplane ## A control plane with the operator, and a shell in it (RUN='COMMAND' runs that instead)
	@PYTHONPATH=tests $(PY) -m support.controlplane.playground $(if $(RUN),sh -c '$(RUN)')

test-unit: setup ## Only the tests without engines and processes
	@$(PY) -m pytest -q tests/unit

lint: setup ## ruff, import floors, stale generated files
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/lint-imports

typecheck: setup ## mypy, strict
	@.venv/bin/mypy

format: setup ## Format the code
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

proto: setup ## Regenerate the protobuf and gRPC stubs
	@sh proto/generate.sh

schemas: setup ## Regenerate the exported schemas in docs/reference
	@$(PY) scripts/export_schemas.py

chart: setup ## Regenerate the chart's schema, README and CRD
	@$(PY) scripts/chart_docs.py

dashboards: setup ## Regenerate dashboards, alert rules and the tables of docs/observability.md
	@$(PY) -m observability

goldens: setup ## Regenerate what the operator makes of each sample, tests/golden/operator
	@$(PY) scripts/render_goldens.py

bench: ## Ratios against peers, stock vLLM and transformers, written to benchmarks/results (CASE=name runs one)
	@scripts/setup.sh bench
	@$(PY) -m benchmarks $(CASE)

bench-operator: controlplane ## The operator with 500 pipelines, against budgets and a bare loop (about 12 minutes)
	@PYTHONPATH=tests:. $(PY) -m benchmarks.operator_load

fuzz: ## A million inputs to everything that reads a peer's bytes, written to benchmarks/results/fuzz.json
	@scripts/setup.sh fuzz
	@$(PY) tests/fuzz/fuzz_edge.py --runs $${RUNS:-1000000} --json benchmarks/results/fuzz.json

soak: setup ## Half an hour of mixed load with random faults (MINUTES=30), written to benchmarks/results/soak.json
	@PYTHONPATH=tests $(PY) -m soak --minutes $${MINUTES:-30} --json benchmarks/results/soak.json

constraints: setup ## Pin the newest versions that pyproject.toml allows
	@uv pip compile pyproject.toml --extra operator --extra stage --extra cpu --extra cli --extra dev --extra bench --quiet \
	  --no-annotate --no-header --python-version 3.11 --upgrade --override constraints/overrides-cpu.txt -o constraints/cpu.txt

clean: ## Remove what the targets made, but not the caches
	rm -rf .venv demo-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
