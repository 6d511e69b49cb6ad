# Each target sets up what it needs: Debian packages (as root; otherwise it prints the command to
# run) and, for the Python side, a virtual environment in .venv.
.DEFAULT_GOAL := help
.PHONY: help demo build test quick-test test-store test-registry test-vllm test-omni bench lint format docs aarch64 clean
MAKEFLAGS += --no-print-directory
CMAKE_QUIET := --log-level=WARNING

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: build ## Build the command and replay a small workload between two processes
	build/release/stagelink demo

build: ## Build build/release/stagelink
	@tools/setup.sh build
	@cmake --preset release $(CMAKE_QUIET)
	@cmake --build --preset release --target stagelink

test: ## Run every test: C++, Python, sanitizers, a short fuzz run, tree checks
	@tools/setup.sh test
	@python3 tools/run_tests.py

quick-test: ## The same without sanitizers and fuzzing
	@tools/setup.sh test
	@python3 tools/run_tests.py --quick

test-store: ## Kill processes inside the arena thousands of times; objects beyond 2 and 4 GiB (minutes)
	@tools/setup.sh test
	@tools/venv.sh
	@cmake --preset release $(CMAKE_QUIET) -DSTAGELINK_TESTS=ON -DSTAGELINK_PYTHON=ON \
	  -DPython_EXECUTABLE=$(CURDIR)/.venv/bin/python
	@cmake --build --preset release --target integration_tests yuanrong_tests stagelink _core
	STAGELINK_CRASH_ROUNDS=3000 STAGELINK_HUGE_OBJECT=1 build/release/integration_tests \
	  --gtest_filter='CrashTest.*:ObjectTableTest.*:Shm*Test.*'
	STAGELINK_HUGE_OBJECT=1 build/release/yuanrong_tests --gtest_filter='YuanrongHugeTest.*'
	cd tests/python && STAGELINK_HUGE_OBJECT=1 PYTHONPATH=$(CURDIR)/build/release/python \
	  $(CURDIR)/.venv/bin/python -m pytest connector/store -k two_gib

test-registry: ## The encoder cache's registry under wrk for a minute, killed on the way
	@tools/setup.sh test load
	@cmake --preset release $(CMAKE_QUIET) -DSTAGELINK_TESTS=ON
	@cmake --build --preset release --target integration_tests
	STAGELINK_REGISTRY_LOAD=60s build/release/integration_tests \
	  --gtest_filter='RegistryProcessTest.*'

test-vllm: ## Run the tests between real vLLM engines (minutes; needs vLLM, see tests/vllm/run.sh)
	@tests/vllm/run.sh

test-omni: ## Run the tests against vLLM-Omni's own code (needs vLLM-Omni, see tests/omni/run.sh)
	@tests/omni/run.sh

bench: ## Measure every case that has a target, and the peers on the same work (takes minutes)
	@tools/setup.sh test
	@tools/venv.sh
	@cmake --preset release $(CMAKE_QUIET) -DSTAGELINK_BENCH=ON -DSTAGELINK_PYTHON=ON \
	  -DPython_EXECUTABLE=$(CURDIR)/.venv/bin/python
	@cmake --build --preset release
	@$(MAKE) -f bench/bench.mk run

lint: ## clang-format, clang-tidy, shape of the tree, ruff and mypy
	@tools/setup.sh lint
	@tools/venv.sh
	@python3 tools/check_shape.py
	@tools/lint_cpp.sh format
	@tools/lint_python.sh
	@tools/lint_cpp.sh tidy

format: ## Rewrite the sources as clang-format and ruff want them
	@tools/setup.sh lint
	@tools/venv.sh
	@tools/lint_cpp.sh rewrite
	@.venv/bin/ruff check --quiet --fix python tests tools examples bench
	@.venv/bin/ruff format --quiet python tests tools examples bench

docs: build ## Write the generated pages of docs/
	build/release/stagelink config docs > docs/options.md

aarch64: ## Check that the library's layers compile for 64-bit Arm
	@tools/setup.sh aarch64
	@cmake -S . -B build/aarch64 -G Ninja --toolchain cmake/aarch64.cmake $(CMAKE_QUIET) \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSTAGELINK_WERROR=ON
	@cmake --build build/aarch64 --target stagelink_connector

clean: ## Remove build/ and .venv
	rm -rf build .venv
