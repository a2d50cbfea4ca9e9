# The entry points. `make` alone lists them.

# Where rustup puts cargo, and where Debian puts what only root needs.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/sbin:/sbin

.PHONY: help setup demo test nightly lint advisories bench test-vm

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what building and testing need and what is missing (Debian 12 or later)
	@scripts/setup.sh

demo: setup ## Record real and generated traffic and check every packet, in about a minute (root)
	@scripts/demo.sh

# Documentation first and the tests last, so that their result is what stands at the end.
test: setup ## Run every test, and the benchmarks once and tiny (root)
	cargo test --workspace --doc
	cargo test --workspace --bench record -- --test
	cargo test --workspace --bench generate -- --test
	cargo test --workspace --bench query -- --test
	cargo test --workspace --tests

# Ten minutes of everything at once, ten thousand questions from a new seed, and planner against libpcap.
nightly: setup ## Run the long tests: half an hour (root)
	TAPDECK_MARATHON_SECONDS=600 cargo test --release -p tapdeck --test marathon
	TAPDECK_EXPRESSIONS=10000 TAPDECK_SEED=$$(date +%Y%m%d000) cargo test --release -p tapdeck --test expressions -- --nocapture
	TAPDECK_EXPRESSIONS=30000 TAPDECK_SEED=$$(date +%Y%m%d000) cargo test --release -p tapdeck --test plans -- --nocapture
	cargo test --release -p tapdeck --test crashes -- --nocapture

lint: setup ## Check format, lints and, with cargo-deny installed, the dependencies' licenses and sources
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@if cargo deny --version >/dev/null 2>&1; \
	then cargo deny check bans licenses sources; \
	else echo 'lint: dependencies are not checked without cargo-deny; scripts/setup.sh --lint installs it'; \
	fi

# Not a part of lint: what is known against a dependency changes while the code stays.
advisories: ## Check the dependencies for known vulnerabilities (needs cargo-deny and the network)
	cargo deny check advisories

bench: ## Measure against the peers; BENCH='--runs 3 --packets 1000000' changes how (root)
	@scripts/setup.sh --bench
	cargo bench -p tapdeck --bench record -- $(BENCH)
	cargo bench -p tapdeck --bench generate -- $(BENCH)
	cargo bench -p tapdeck --bench query -- $(BENCH)

test-vm: ## Run the tests on other kernels, in virtual machines
	scripts/test-vm.sh
