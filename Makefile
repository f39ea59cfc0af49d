# ironvip's targets. `make help` lists them. `make demo` and `make test` install
# what they need.

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
TAGS     := nomsgpack
LDFLAGS  := -s -w -X main.version=$(VERSION)
BIN      := bin/ironvip

export CGO_ENABLED ?= 0
export GOFLAGS := -tags=$(TAGS)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "  %-24s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/ironvip, bin/ironvip-announcer and bin/ironvip-proxy
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: demo
demo: build ## run an agent with demo backends and two services; no root needed
	@exec $(BIN) agent --demo

.PHONY: test
test: ## set up and run every lane: check, unit, kernel VM, built binary with real servers
	@test/run all

.PHONY: test-long
test-long: ## the second tier: random, long or repeated tests (DURATION=2h, SEED=7 to repeat a seed)
	@test/run long

.PHONY: fuzz
fuzz: ## every fuzz target for an equal part of a time (DURATION=10m)
	@test/run fuzz

.PHONY: quick
quick: ## the quick lane: no setup, no root
	$(GO) test ./...

.PHONY: check
check: ## formatting, vet and staticcheck
	@test/run check

.PHONY: unit vm system
unit vm system: ## one lane of `make test` (PKG=./ipvs for one package)
	@test/run $@ $(PKG)

.PHONY: kernels
kernels: ## the VM lane on the kernels 5.10, 6.1 and 6.12 (KERNELS=5.10 for one; about an hour each)
	@test/run kernels

.PHONY: bench
bench: ## the rows of docs/performance.md, on a quiet machine (about an hour; ROW=proxy for one of them)
	@test/run bench

.PHONY: bench-scale
bench-scale: build ## start, memory, scrapes and idling of an agent with a fleet in files (SERVICES=10000 BACKENDS=10)
	$(GO) run ./test/scale -bin $(BIN) -services $(or $(SERVICES),10000) -backends $(or $(BACKENDS),10)

.PHONY: man
man: ## write the manual pages to bin/man
	$(GO) run ./cmd/ironvip man bin/man

.PHONY: install
install: build man ## install the programs, the systemd units and the samples (as root; DESTDIR is honored)
	install -Dm755 $(BIN) $(DESTDIR)/usr/local/bin/ironvip
	install -Dm755 -t $(DESTDIR)/usr/local/libexec/ironvip bin/ironvip-announcer bin/ironvip-proxy
	install -Dm644 -t $(DESTDIR)/etc/systemd/system configs/systemd/*.service configs/systemd/*.socket
	install -Dm644 configs/systemd/sysusers.d/ironvip.conf $(DESTDIR)/etc/sysusers.d/ironvip.conf
	install -Dm644 configs/systemd/sysctl.d/60-ironvip.conf $(DESTDIR)/etc/sysctl.d/60-ironvip.conf
	install -Dm644 configs/systemd/modules-load.d/ironvip.conf $(DESTDIR)/etc/modules-load.d/ironvip.conf
	install -Dm644 configs/polkit/50-ironvip.rules $(DESTDIR)/etc/polkit-1/rules.d/50-ironvip.rules
	install -Dm644 -t $(DESTDIR)/usr/local/share/man/man1 bin/man/*.1
	install -Dm644 -t $(DESTDIR)/usr/local/share/man/man5 bin/man/*.5
	install -dm755 $(DESTDIR)/etc/ironvip/services.d
	test -e $(DESTDIR)/etc/ironvip/ironvip.toml || install -m644 configs/ironvip.toml $(DESTDIR)/etc/ironvip/ironvip.toml

.PHONY: package
package: ## write the .deb and .rpm packages for amd64 and arm64 to bin/packages
	@rm -rf bin/packages
	@packaging/package.sh

.PHONY: image
image: ## write a container image for amd64 and arm64 to bin/image (OCI image layout)
	@packaging/image.sh

.PHONY: release
release: ## write repositories of packages, image, changes, modules (SBOM) and checksums to bin/release (SIGN_KEY=KEY of gpg)
	@packaging/release.sh

.PHONY: clean
clean: ## remove build results; keep the download cache
	rm -rf bin
