# Every target does its own set-up. `make help` lists them.
SHELL := /bin/sh
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup house demo oracle test test-all test-rest test-unit coverage full lint format typecheck proto schemas bench fuzz soak soak-leaks constraints clean controlplane playground bench-operator bench-pods soak-cluster goldens chart manifests images cluster-up cluster-down e2e dashboards gpu sbom mutations

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install everything into .venv (other targets do it when needed; LIGHT=1: without vLLM and torch, also on macOS)
	@LIGHT='$(LIGHT)' tools/setup.sh

.PHONY: check check-code check-tests check-tests-1 check-tests-2 docs docs-serve
check: ## Lint, types and the light unit tests: no engine, no torch (two to three minutes on two cores)
	@LIGHT=1 tools/setup.sh
	@$(MAKE) --no-print-directory -j3 check-code check-tests-1 check-tests-2

check-code:
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --quiet --check .
	@.venv/bin/lint-imports --no-logo >/dev/null || .venv/bin/lint-imports --no-logo
	@$(PY) tools/check_words.py
	@.venv/bin/mypy $(addprefix -p ,omni_proto omnipipeline omni_kube omni_operator omni_gateway omni_cli)

check-tests check-tests-1 check-tests-2:
	@$(PY) -m pytest -q -p no:cacheprovider -m 'not full and not needs_vllm' $$($(PY) tools/light_tests.py $(patsubst check-tests-%,%/2,$(filter check-tests-%,$@)))

docs: ## Build the documentation site into site/; fails on a broken link
	@LIGHT=1 tools/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

docs-serve: ## Serve the documentation site on http://localhost:8001, and rebuild it when a page changes
	@LIGHT=1 tools/setup.sh docs
	@.venv/bin/mkdocs serve --dev-addr localhost:8001

demo: setup ## Ask a small text model that answers with a voice, from real weights (TALK=1: ask aloud; HTTP=8000: then serve a page; FAMILY=qwen2_5_omni, qwen3_omni: tiny and random)
	@.venv/bin/omnipipe demo --out demo-output $(if $(FAMILY),--family $(FAMILY)) $(if $(TALK),--talk) $(if $(HTTP),--http $(HTTP))

RUN_TESTS = PYTHONPATH=tests $(PY) -m runner --workers $${WORKERS:-5}
WITH_GRPCURL = GRPCURL="$$(tools/grpcurl.sh)" && export GRPCURL

test: setup ## Run unit tests, one engine of each kind and one pipeline of each family (10 minutes on two cores, and 2 for set-up); logs in test-logs
	@rm -rf test-logs .coverage
	@$(RUN_TESTS) --tier first -- -p no:cacheprovider

test-rest: setup controlplane ## Run the tests of `make test-all` that `make test` leaves out (needs Go)
	@$(WITH_GRPCURL) && $(RUN_TESTS) --tier rest -- -p no:cacheprovider

test-all: test ## Run all tests except whole matrices (make full) and e2e (needs Go)
	@$(MAKE) --no-print-directory test-rest

coverage: setup controlplane ## Run the tests of `make test-all` with coverage, in twice the time; fails if a package is below its minimum
	@rm -rf test-logs .coverage
	@$(WITH_GRPCURL) && $(RUN_TESTS) -- -p no:cacheprovider --cov --cov-report=
	@$(PY) tools/check_coverage.py test-logs

controlplane: setup ## Build etcd, the API server, controllers, kwok and helm for the tests (once, 9 to 16 minutes)
	@PYTHONPATH=tests $(PY) -m support.controlplane.binaries >/dev/null

images: ## Build the images of the operator and of CPU stages with docker, podman or buildah (TARGETS=stage-gpu: of GPU stages; TARGETS=demo: of the demo)
	@tools/images.sh $(TARGETS)

cluster-up: setup ## Start a real Kubernetes node on this machine with our images (needs root)
	@PYTHONPATH=tests $(PY) -m support.cluster.command up

cluster-down: setup ## Remove the node of cluster-up; images stay in the cache
	@PYTHONPATH=tests $(PY) -m support.cluster.command down

e2e: setup ## Run the end-to-end tests on a real Kubernetes node (needs root; 15 minutes, 20 more the first time; FULL=1: also Qwen3-Omni, an autoscaler and the demo's image)
	@OMNIPIPE_E2E=1 $(PY) -m pytest -q -p no:cacheprovider --durations=15 $(if $(FULL),,-m 'not full') tests/cluster

playground: controlplane ## Start a control plane with the operator, and a shell for it (RUN='COMMAND' runs COMMAND instead of the shell)
	@PYTHONPATH=tests $(PY) -m support.controlplane.playground $(if $(RUN),sh -c '$(RUN)')

full: coverage ## Run all that takes too long for `make test-all`: coverage, whole matrices, mutations, each Python
	@$(WITH_GRPCURL) && $(PY) -m pytest -q -p no:cacheprovider -m full tests
	@$(MAKE) mutations pythons

.PHONY: pythons
PYTHONS ?= 3.11 3.12 3.13
pythons: setup ## Run the light unit tests with each supported Python; uv gets those that are missing (PYTHONS='3.12')
	@uv="$$(command -v uv || echo "$${XDG_CACHE_HOME:-$$HOME/.cache}/omnipipeline/uv/bin/uv")"; for version in $(PYTHONS); do \
	  echo "== Python $$version"; venv="$${XDG_CACHE_HOME:-$$HOME/.cache}/omnipipeline/pythons/$$version"; \
	  "$$uv" venv --quiet --allow-existing --python "$$version" "$$venv" && \
	  "$$uv" pip install --quiet --python "$$venv/bin/python" -e '.[operator,stage,gateway,cli,check]' --constraints constraints/cpu.txt && \
	  $(MAKE) --no-print-directory check-tests PY="$$venv/bin/python" || exit 1; \
	done

mutations: setup ## Break thirty behaviours, one at a time, and check that the unit tests notice (about half an hour)
	@PYTHONPATH=tests $(PY) -m checks.mutation

test-unit: setup ## Run only the tests without real engines and server processes (two to four minutes)
	@PYTHONPATH=tests $(PY) -m runner --logs test-logs --only unit-stage --only unit-costly --only unit-models --only unit-operator --only unit-clients --only unit -- -p no:cacheprovider

lint: setup ## Check code with ruff, the layers of imports, the Dockerfile, and that prose uses standard words
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/lint-imports
	@.venv/bin/hadolint Dockerfile
	@$(PY) tools/check_words.py

typecheck: setup ## Check types with mypy, in strict mode
	@.venv/bin/mypy

house: setup ## Compare the size and shape of this repository with the limits that we set ourselves (ARGS=--list names what is counted)
	@$(PY) -m tools.house $(ARGS)

format: setup ## Format the code
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

proto: setup ## Regenerate the protobuf and gRPC stubs
	@sh proto/generate.sh

schemas: setup ## Regenerate the CRD, docs/reference, and the facts of the built-in components (components.json)
	@$(PY) -m tools.export_schemas

chart: setup ## Regenerate the chart's values.schema.json and README, and its copy of the operator's RBAC rules
	@$(PY) -m tools.chart_docs

manifests: chart ## Regenerate manifests/operator.yaml from the chart (builds helm once)
	@helm="$$(PYTHONPATH=tests $(PY) -m support.controlplane.binaries helm)" && $(PY) tools/render_manifests.py --helm "$$helm"

dashboards: setup ## Regenerate dashboards, alert rules and tables of docs
	@$(PY) -m tools.observability

goldens: setup ## Regenerate tests/golden/operator: the objects that the operator creates for samples, or their digest
	@$(PY) tools/render_goldens.py

bench: ## Measure our speed as ratios to peers, stock vLLM and transformers; fails if a ratio misses a required bound or became worse (CASE=name runs one case)
	@tools/setup.sh bench
	@$(PY) -m benchmarks $(CASE)

gpu: ## Check that the stages answer correctly, fit and are fast on this GPU (docs/gpu-check.md; MODEL=/models/Qwen2.5-Omni-7B)
	@[ -n "$${PYTHON:-}" ] || tools/setup.sh
	@PYTHONPATH=tests:.:stage_server:proto:cli:operator "$${PYTHON:-$(PY)}" -m benchmarks.gpu $(if $(MODEL),--model $(MODEL)) $(ARGS)

bench-operator: controlplane ## Measure the operator with 500 pipelines, compared with budgets and a bare loop (about 10 minutes)
	@PYTHONPATH=tests:. $(PY) -m benchmarks.operator_load

bench-pods: setup ## Compare a stage's start in a pod with its start outside, on a real node (needs root; about 12 minutes)
	@PYTHONPATH=tests:. $(PY) -m benchmarks.pod_start

oracle: setup ## Compare our answers with transformers' generate(), both in the version of the model's release and in the installed one (6 GB, 5 minutes)
	@PYTHONPATH=tests $(PY) -m checks.oracle --json benchmarks/results/oracle.json

fuzz: ## Pass a million random inputs to the code that reads a peer's bytes, and a million to the media decoders; results in benchmarks/results/fuzz*.json
	@tools/setup.sh fuzz
	@PYTHONPATH=tests $(PY) -m checks.fuzz.fuzz_edge --runs $${RUNS:-1000000} --json benchmarks/results/fuzz.json
	@PYTHONPATH=tests $(PY) -m checks.fuzz.fuzz_edge --media --runs $${RUNS:-1000000} --json benchmarks/results/fuzz-media.json

sbom: ## Write a bill of materials of each image's packages (CycloneDX) into sbom/; fails on a licence that is not allowed
	@tools/setup.sh sbom
	@$(PY) tools/sbom.py

.PHONY: release release-push release-sign
WITH_HELM = helm="$$(PYTHONPATH=tests $(PY) -m support.controlplane.binaries helm)" && export helm
release: setup ## Cut version VERSION=1.2.3, and build its packages, chart, manifests and bills into dist/VERSION (REGISTRY=... : where the chart's images are)
	@tools/setup.sh sbom
	@[ -n "$(VERSION)" ] || { echo "say which: make release VERSION=1.2.3" >&2; exit 2; }
	@$(WITH_HELM) && $(PY) -m tools.release cut "$(VERSION)" --helm "$$helm" && $(PY) -m tools.release build --helm "$$helm" --registry "$(REGISTRY)"

release-push: setup ## Push the chart in dist/ and images for each PLATFORMS to REGISTRY, with bills and provenance (after make release; needs docker buildx)
	@$(WITH_HELM) && $(PY) -m tools.release push-chart --helm "$$helm" --registry "$(REGISTRY)"
	@PUSH=1 REGISTRY="$(REGISTRY)" tools/images.sh $${TARGETS:-operator stage-cpu stage-gpu stage-sim demo}

release-sign: setup ## Sign what release-push pushed to REGISTRY, by Sigstore without a key (KEY=FILE: with a key of cosign; needs cosign)
	@$(PY) -m tools.release sign --registry "$(REGISTRY)" $(if $(KEY),--key "$(KEY)")

soak: setup ## Run mixed load with random faults for half an hour (MINUTES=30); HOSTILE=1: for 5 minutes, with hostile clients instead of faults
	@if [ -n "$(HOSTILE)" ]; then \
	  PYTHONPATH=tests:. $(PY) -m checks.soak --hostile --minutes $${MINUTES:-5} --json benchmarks/results/soak-hostile.json; \
	else PYTHONPATH=tests:. $(PY) -m checks.soak --minutes $${MINUTES:-30} --json benchmarks/results/soak.json; fi

soak-leaks: setup ## Run mixed load for three hours without killing a process, to find memory leaks (MINUTES=180)
	@PYTHONPATH=tests:. $(PY) -m checks.soak --no-kills --minutes $${MINUTES:-180} --json benchmarks/results/soak-leaks.json

soak-cluster: setup ## Run each kind of rollout and scaling ten times on a real node under load (needs root; about 50 minutes; TIMES=10, ONLY='rolling update')
	@PYTHONPATH=tests:. $(PY) -m checks.soak.changes --times $${TIMES:-10} $(if $(ONLY),--only '$(ONLY)',--json benchmarks/results/soak-changes.json)

constraints: setup ## Pin the newest dependencies that pyproject.toml allows, in constraints/
	@uv pip compile pyproject.toml --extra operator --extra stage --extra gateway --extra cpu --extra cli --extra dev --extra bench --quiet \
	  --no-annotate --no-header --python-version 3.11 --upgrade --override constraints/overrides-cpu.txt -o constraints/cpu.txt
	@uv pip compile pyproject.toml --extra gpu --quiet --no-annotate --no-header --python-version 3.11 \
	  --python-platform x86_64-manylinux_2_28 --upgrade -o constraints/gpu.txt
	@$(PY) -m benchmarks.peer.environment | uv pip compile - --quiet --no-annotate --no-header --python-version 3.11 \
	  --upgrade --override constraints/overrides-cpu.txt -o constraints/peer.txt
	@$(PY) tools/hash_constraints.py uv

clean: ## Remove .venv, test logs, demo output and the tools' caches in this folder; downloads and builds in ~/.cache stay
	rm -rf .venv site demo-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis test-logs .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
