# One command per thing that one does with this repository. `make help` lists them.
CARGO ?= cargo
OUT ?= target/bench
# Packages for development alone, and doors that are no crates: no other package depends on them with a version.
UNPUBLISHED = --exclude extant-oracle --exclude extant-testkit --exclude extant-capi --exclude extant-python --exclude xtask
# Systems on which the library compiles without a linker for them. Their standard libraries: rustup target add NAME.
OTHER_SYSTEMS = x86_64-pc-windows-gnu aarch64-apple-darwin

.PHONY: help build demo check test lint soak bench threads experiments-age experiments-kernel fuzz dist install uninstall deb python deny deps clean-demo

# Where `make install` puts things; DESTDIR in front of all of it. /sbin is where mount(8) looks for helpers.
PREFIX ?= /usr/local
SBINDIR ?= /sbin
LIBDIR ?= $(PREFIX)/lib
DESTDIR ?=
EXTANT ?= target/release/extant

# Where rustup puts cargo, also in a shell that does not know yet.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

help:
	@echo "make build    the program, target/release/extant, and the C library beside it"
	@echo "make demo     build, then: an image, a mount, a power cut, a replay, and speeds beside the kernel's"
	@echo "make check    format, tidy, clippy and the short tests of the packages changed since BASE (upstream, or HEAD)"
	@echo "make test     lint, every test of the workspace"
	@echo "make lint     rustfmt, clippy, cargo xtask tidy, cargo doc, the library for other systems, and whether the crates can be packaged"
	@echo "make deny     licenses and sources of the dependencies (cargo install cargo-deny)"
	@echo "make soak     the long tests (hours on a small machine)"
	@echo "make bench    the table of speeds: kernel ext4, fuse2fs, Extant, FUSE alone (root)"
	@echo "make threads  docs/threads.md and its pictures, from the trials in experiments/"
	@echo "make experiments-age  how many commits have changed what each experiment is about since its trials"
	@echo "make experiments-kernel  this kernel's own ext4 in the parts that the five threads are about (root, ten minutes)"
	@echo "make fuzz     each fuzz target for FUZZ_SECONDS (60)"
	@echo "make dist     a static binary, manual pages, completions and mount helpers: target/dist, and a tarball of it"
	@echo "make install  what 'make build' made, its manual pages, completions, mount helpers and header (PREFIX, SBINDIR, LIBDIR, DESTDIR)"
	@echo "make deb      Debian packages of the same in target/dist: extant and libextant-dev"
	@echo "make python   the wheel of the Python package in target/python/dist"

deps:
	@scripts/install-deps.sh

demo: deps
	@scripts/demo.sh

check:
	@scripts/check.sh

test: deps
	@scripts/test.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) xtask tidy
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet
	@for system in $(OTHER_SYSTEMS); do \
		if [ -d "$$(rustc --print target-libdir --target $$system)" ]; then \
			echo "$(CARGO) check -p extant --target $$system"; \
			$(CARGO) check --locked -p extant --target $$system --quiet || exit 1; \
		else echo "skipped: $$system: rustup target add $$system"; fi; \
	done
	$(CARGO) package --locked --workspace $(UNPUBLISHED) --no-verify --allow-dirty --quiet

deny:
	$(CARGO) deny check licenses bans sources

soak: deps
	@scripts/soak.sh

bench: deps
	$(CARGO) build --locked --release -p extant-cli
	$(CARGO) build --locked --release -p extant-testkit --bin smallfiles
	$(CARGO) build --locked --release -p extant-fuse --example memory_server
	mkdir -p $(OUT)
	scripts/bench.py --json $(OUT)/bench.json --table $(OUT)/bench.md $(BENCH_ARGS)
	scripts/bench_chart.py $(OUT)/bench.json $(OUT)/speed.svg

threads:
	@scripts/threads.py

experiments-age:
	@scripts/experiments_age.py

experiments-kernel:
	experiments/037-linux/run target/experiments-kernel

fuzz:
	@scripts/fuzz.sh

build:
	@scripts/install-deps.sh --build
	$(CARGO) build --locked --release -p extant-cli --bin extant
	$(CARGO) rustc --locked --release -p extant-capi --lib --crate-type cdylib,staticlib

# Installs what is built and never builds: root need not have a toolchain, and leaves no files of its own in target/.
install: $(EXTANT)
	@scripts/install.sh "$(EXTANT)" "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)"
	@[ ! -e "$(dir $(EXTANT))libextant_capi.so" ] || \
		scripts/install-lib.sh "$(dir $(EXTANT))" "$(DESTDIR)" "$(PREFIX)" "$(LIBDIR)"

$(EXTANT):
	@echo "$@ is not there: run 'make build' first, without sudo" >&2; exit 1

uninstall:
	@scripts/install.sh --remove "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)"
	@scripts/install-lib.sh --remove "$(DESTDIR)" "$(PREFIX)" "$(LIBDIR)"

deb: $(EXTANT)
	@scripts/deb.sh "$(EXTANT)" target/dist

python:
	@PYTHON_PROFILE=release scripts/python.sh

# Linked statically against the system's own C library: no toolchain beyond the usual one.
dist:
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --locked --release -p extant-cli --bin extant \
		--target $$(rustc -vV | sed -n 's/^host: //p') --target-dir target/static
	rm -rf target/dist/extant-*/ target/dist/extant
	@scripts/dist.sh target/static/*/release/extant target/dist
	@ls -l target/dist
