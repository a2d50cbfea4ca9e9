# The entry points. `make` alone lists them.

# Where scripts/setup.sh --lint and rustup put programs, and Debian those that only root needs.
export PATH := $(CURDIR)/scripts/lint/.tools/bin:$(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/sbin:/sbin

# Where cargo builds. A target below builds all that it uses, and names the directory of that build
# to what it runs: a program that happens to lie somewhere may be half of a build, or an old one.
export CARGO_TARGET_DIR ?= $(CURDIR)/target
DEV := $(abspath $(CARGO_TARGET_DIR))/debug
RELEASE := $(abspath $(CARGO_TARGET_DIR))/release

# One test goes along, for then whatever programs and tests depend on is built with what both ask of
# it. Without it, all of that would be built twice.
BUILD := cargo build --workspace --lib --bins --test lines

.PHONY: help setup demo test python test-python nightly fuzz lint advisories bench bench-python lab lab-once lab-quick lab-test test-vm deb

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what building and testing need and what is missing (Debian 12 or later)
	@scripts/setup.sh --lab

# The demonstration takes the tests' build: its rates are those of the kernel, which the compiler's
# optimizations do not change, and a build for release would take as long again.
demo: ## Record real and generated traffic and check every packet, in about a minute (root)
	@scripts/setup.sh
	$(BUILD)
	@scripts/demo.sh $(DEV)/tapdeck

BENCHES := record generate query sharing rules hook index flows

# Ends a test program that hangs, long after any that works has ended.
GUARD := --config 'target."cfg(unix)".runner = ["timeout", "--foreground", "--verbose", "20m"]'

# Tests wait for other processes for most of their time: so many programs of tests run at once, and
# so many tests of each.
TEST_PROGRAMS ?= 3
export RUST_TEST_THREADS ?= 4

# The tests that drive a browser.
CONSOLE := crates/gateway/tests/console

# Documentation first and the tests last, so that their result is what stands at the end.
test: setup ## Run every test, and the benchmarks once and tiny (root)
	$(BUILD)
	cargo test --workspace --doc
	cargo test $(GUARD) --workspace $(addprefix --bench ,$(BENCHES)) -- --test
	scripts/run-tests.py $(TEST_PROGRAMS) 1200 \
		"lab/.venv/bin/python -m pytest -q lab/tests --build $(DEV)" \
		"$(CONSOLE)/.venv/bin/python -m pytest -q $(CONSOLE) --build $(DEV)"

# The Python module has a workspace of its own, so nothing above builds it, and its virtual
# environment has what builds and tests it.
PYTHON := crates/python/.venv/bin/python
MATURIN = cd crates/python && VIRTUAL_ENV=$$PWD/.venv .venv/bin/maturin

python: ## Build the Python module tapdeck: target/wheels/tapdeck-VERSION-cp311-abi3-*.whl
	@scripts/setup.sh --python
	$(MATURIN) build --release --locked --out $(CURDIR)/target/wheels

test-python: ## Run the tests of the Python module, and the notebook (root)
	@scripts/setup.sh --python
	$(BUILD)
	$(MATURIN) develop --locked
	$(PYTHON) -m pytest -q crates/python/tests --build $(DEV)

# Ten minutes of everything at once, ten thousand questions from a new seed, the planner against
# libpcap, a hundred recorders killed under load, and a minute of each fuzz target.
nightly: setup ## Run the long tests: an hour (root)
	TAPDECK_MARATHON_SECONDS=600 cargo test --release -p tapdeck --test marathon
	TAPDECK_EXPRESSIONS=10000 TAPDECK_SEED=$$(date +%Y%m%d000) cargo test --release -p tapdeck --test expressions -- --nocapture
	TAPDECK_EXPRESSIONS=100 TAPDECK_SEED=$$(date +%Y%m%d000) cargo test --release -p tapdeck --test hook_expressions -- --nocapture
	TAPDECK_EXPRESSIONS=30000 TAPDECK_SEED=$$(date +%Y%m%d000) cargo test --release -p tapdeck --test plans -- --nocapture
	cargo test --release -p tapdeck --test crashes -- --nocapture
	TAPDECK_KILLS=25 cargo test --release -p tapdeck --test takeover --test later_persist -- --nocapture
	TAPDECK_STEERED_PACKETS=10000000 cargo test --release -p tapdeck --test steering -- --nocapture
	TAPDECK_FETCH_ROWS=10000 cargo test --release -p tapdeck --test fetch -- --nocapture
	TAPDECK_FILTER_PROGRAMS=20000 cargo test --release -p tapdeck-capture --lib filter -- --nocapture
	$(MAKE) fuzz

# cargo-fuzz builds with its own flags, apart from everything else. What is found lies in
# fuzz/artifacts, and a corpus grows in fuzz/corpus.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS = $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))

fuzz: ## Run each fuzz target for FUZZ_SECONDS (60) with the address sanitizer, from fuzz/seeds
	@scripts/setup.sh --fuzz
	cd fuzz && env -u CARGO_TARGET_DIR cargo +nightly fuzz build
	cd fuzz && for target in $(FUZZ_TARGETS); do \
		mkdir -p corpus/$$target && \
		env -u CARGO_TARGET_DIR cargo +nightly fuzz run $$target corpus/$$target seeds/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=65536 -print_final_stats=1 || exit 1; \
	done

# Pinned versions, which scripts/setup.sh --lint installs.
LINT := scripts/lint/.venv/bin
PYTHON_CODE := crates/python docs/python.ipynb
SHELL_SCRIPTS := .ci/run lab/lab scripts/*.sh scripts/vm/init scripts/vm/*.sh packaging/deb/* packaging/extcap/*
C_FILES = $(shell git ls-files -co --exclude-standard 'crates/*.[ch]' 'lab/load/*.[ch]')

lint: ## Hold code, comments, documents and the licenses of dependencies to the rules
	@scripts/setup.sh --lab --lint --python
	cargo fmt --all --check
	cargo fmt --manifest-path crates/python/Cargo.toml --check
	$(LINT)/clang-format --dry-run --Werror $(C_FILES)
	$(LINT)/ruff format --check lab scripts $(CONSOLE) $(PYTHON_CODE)
	$(LINT)/ruff check lab scripts $(CONSOLE) $(PYTHON_CODE)
	cd lab && ../$(LINT)/mypy --python-executable .venv/bin/python
	$(LINT)/mypy --strict --python-executable lab/.venv/bin/python scripts/lint scripts/run-tests.py
	cd $(CONSOLE) && $(CURDIR)/$(LINT)/mypy --python-executable .venv/bin/python .
	cd crates/python && $(CURDIR)/$(LINT)/mypy --python-executable .venv/bin/python
	$(LINT)/shellcheck $(SHELL_SCRIPTS)
	lab/.venv/bin/python -m pytest -q scripts/lint
	@scripts/setup.sh --fleet
	$(LINT)/ruff format --check lake
	$(LINT)/ruff check lake
	cd lake && ../$(LINT)/mypy --python-executable .venv/bin/python
	$(LINT)/shellcheck lake/tapdeck-lake
	$(LINT)/python scripts/lint/comments.py
	$(LINT)/python scripts/lint/messages.py
	scripts/check-docs.sh
	cargo deny check bans licenses sources
	cd crates/python && cargo deny --config ../../deny.toml check bans licenses sources
	cargo clippy --workspace --all-targets -- -D warnings
	cd crates/python && cargo clippy --locked --all-targets -- -D warnings

# Not a part of lint: what is known against a dependency changes while the code stays.
advisories: ## Check the dependencies for known vulnerabilities (needs the network)
	@scripts/setup.sh --lint
	cargo deny check advisories
	cd crates/python && cargo deny --config ../../deny.toml check advisories

bench: ## Measure against the peers; BENCH='--runs 3 --packets 1000000' changes how (root)
	@scripts/setup.sh --bench
	cargo bench -p tapdeck --bench record -- $(BENCH)
	cargo bench -p tapdeck --bench generate -- $(BENCH)
	cargo bench -p tapdeck --bench query -- $(BENCH)
	cargo bench -p tapdeck --bench sharing -- $(BENCH)
	cargo bench -p tapdeck-capture --bench rules
	cargo bench -p tapdeck-capture --bench hook
	cargo bench -p tapdeck-store --bench index
	cargo bench -p tapdeck-flow --bench flows

bench-python: ## Measure the Python module beside `tapdeck query` (root)
	@scripts/setup.sh --python
	cargo build --release -p tapdeck
	$(MATURIN) develop --release --locked
	$(PYTHON) crates/python/benches/query.py --build $(RELEASE)

# Where the lab's results go: make lab-quick OUT=DIR
OUT ?= lab-results

lab-quick: ## Rerun the references' experiments, a quarter of an hour of them, into OUT=DIR (root)
	@scripts/setup.sh --lab --bench
	cargo build --release --workspace
	lab/lab run --build $(RELEASE) --quick --out $(OUT)

lab-once: ## Run each combination of the full profile once, to see that it runs, into OUT=DIR (root)
	@scripts/setup.sh --lab --bench
	cargo build --release --workspace
	lab/lab run --build $(RELEASE) --once --out $(OUT)

lab: ## Rerun the references' experiments overnight, into OUT=DIR (root)
	@scripts/setup.sh --lab --bench
	cargo build --release --workspace
	lab/lab run --build $(RELEASE) --out $(OUT)

lab-test: ## Run the lab's own tests (root)
	@scripts/setup.sh --lab
	$(BUILD)
	lab/.venv/bin/python -m pytest -q lab/tests --build $(DEV)

deb: ## Build the Debian package, target/debian/tapdeck_VERSION_amd64.deb
	@scripts/setup.sh --package
	scripts/package.sh

test-vm: ## Run the tests on other kernels, and the package's in a fresh Debian, in virtual machines
	scripts/test-vm.sh
	@scripts/setup.sh --package
	scripts/test-package.sh

.PHONY: test-fleet test-lake test-s3 demo-fleet bench-lake bench-engines bench-fetch

# What needs engines that are no packages of Debian's: each part by itself, so that one can be run
# alone.
test-fleet: test-s3 test-lake demo-fleet ## Run the tests that need engines, or S3 (root)

test-s3:
	@scripts/setup.sh --lab
	@scripts/setup.sh --fleet
	$(BUILD)
	server=$$(scripts/setup-s3.sh) && jar=$$(scripts/setup-s3.sh s3proxy) && \
		TAPDECK_S3_SERVER=$$server TAPDECK_S3PROXY=$$jar \
		cargo test $(GUARD) --workspace --test s3 -- --ignored

# Spark reads stores by the Python module, which is put where the lake's packages are. Each of two
# processes takes whole files of tests, which have servers of their own.
test-lake:
	@scripts/setup.sh --python
	@scripts/setup.sh --fleet
	$(BUILD)
	cd crates/python && VIRTUAL_ENV=$(CURDIR)/lake/.venv .venv/bin/maturin develop --locked
	jars=$$(scripts/setup-spark.sh) && server=$$(scripts/setup-s3.sh) && \
		lake/.venv/bin/python -m pytest -q -n 2 --dist loadfile lake --build $(DEV) --jars $$jars \
			--s3-server $$server

demo-fleet: ## Show eight sensors, one lake, and the packets behind an answer, in two minutes (root)
	@scripts/setup.sh --fleet
	$(BUILD)
	jars=$$(scripts/setup-spark.sh) && server=$$(scripts/setup-s3.sh) && \
		lake/.venv/bin/python lake/demo.py --build $(DEV) --jars $$jars --s3-server $$server

bench-lake: ## Fill, compact and ask a lake of 100 million rows; BENCH='--rows 10000000' takes fewer
	@scripts/setup.sh --fleet
	lake/.venv/bin/python lake/bench.py $(BENCH)

bench-engines: ## Ask three engines about 100 million rows on S3; BENCH='--rows 10000000' (root)
	@scripts/setup.sh --fleet
	jars=$$(scripts/setup-spark.sh) && server=$$(scripts/setup-s3.sh) && \
		lake/.venv/bin/python lake/bench_engines.py --jars $$jars --s3-server $$server $(BENCH)

bench-fetch: ## Time the packets of one row, from a directory and from S3, near and far
	@scripts/setup.sh --fleet
	cargo build --release -p tapdeck -p tapdeck-remote
	server=$$(scripts/setup-s3.sh) && \
		lake/.venv/bin/python lake/bench_fetch.py --build $(RELEASE) --s3-server $$server $(BENCH)
