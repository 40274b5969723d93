# What there is to do here. `make help` lists it.
SHELL := /bin/bash
CARGO ?= cargo
TOOLS := $(CURDIR)/.tools
DENY_VERSION := 0.20.2
MACHETE_VERSION := 0.9.2

.DEFAULT_GOAL := help
.PHONY: help run dist test lint audit compose-test

help: ## List what there is to do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build and serve the embedded engine with the demo on 127.0.0.1:8080 (ARGS="--listen …")
	$(CARGO) run --release -- serve $(ARGS)

dist: ## Build what is shipped and measured, target/dist/drone-delivery: slower to build, quicker to run
	$(CARGO) build --profile dist --locked

test: ## Run all tests; installs RabbitMQ and Redis from the system's packages when they are missing
	scripts/test-setup
	$(CARGO) test --locked

lint: $(TOOLS)/bin/cargo-deny $(TOOLS)/bin/cargo-machete ## Check format, lints, docs, licences and unused dependencies
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --locked --no-deps --document-private-items --quiet
	$(TOOLS)/bin/cargo-deny --all-features --locked check licenses bans sources
	$(TOOLS)/bin/cargo-machete

audit: $(TOOLS)/bin/cargo-deny ## Check the dependencies against the published security advisories (needs the network)
	$(TOOLS)/bin/cargo-deny --all-features --locked check advisories

compose-test: ## Bring the scaled compose layout up, kill a scheduler under load, take it down (needs Docker)
	scripts/compose-test

# The tools run for seconds, so they are built fast rather than built to be fast.
$(TOOLS)/bin/cargo-deny:
	CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --debug --locked --root $(TOOLS) --version $(DENY_VERSION) cargo-deny

$(TOOLS)/bin/cargo-machete:
	CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --debug --locked --root $(TOOLS) --version $(MACHETE_VERSION) cargo-machete
