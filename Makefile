# `make test` is everything that CI runs; .ci/run calls it. The other targets are
# its parts, and what takes longer.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
GO          ?= go

# The race detector needs a C compiler. Where there is none the tests run
# without it; CI insists.
RACE := $(if $(or $(CI),$(shell command -v gcc || command -v clang)),-race,)

# Packages whose tests depend on who runs them: as root they are run a second
# time as an ordinary user. What takes longest comes first: two run at a time.
USER_PKGS := tests/e2e infrastructure/process infrastructure/session tests/soak infrastructure/landlock infrastructure/privileges infrastructure/seccomp infrastructure/sandbox infrastructure/store infrastructure/terminal tests/crash

EXAMPLES := $(patsubst %/go.mod,%,$(wildcard examples/*/go.mod))
CLIS     := tests/clis/node_modules/.package-lock.json

FUZZTIME ?= 30s
COUNT    ?= 50
KILLS    ?= 200
SPAWNS   ?= 10000
RUNS     ?= 3
SESSIONS ?= 1000
TURNS    ?= 10
CRASHES  ?= 5

.PHONY: build test test-short check fmt-check vet lint clis race user bench bench-full \
	stress soak soak-spawns crash big test-full fuzz examples generate-check clean

build: ## the command, bin/caisson; static, and spawns a little faster than with cgo
	CGO_ENABLED=0 $(GO) build -o bin/caisson ./cmd/caisson

# What fails fast comes first.
test: check clis bench examples user race ## all of it

check: fmt-check vet lint generate-check ## all that runs no test

test-short: ## the quick tests, without the race detector
	$(GO) test -short ./...

fmt-check:
	@bad=$$(find . -name node_modules -prune -o -name testdata -prune -o -name '*.go' -print | xargs gofmt -l); \
	if [ -n "$$bad" ]; then echo "not formatted (run gofmt -w):"; echo "$$bad"; exit 1; fi

# The sandbox is Linux's, but the project compiles, and refuses, elsewhere too.
vet:
	for os in linux darwin windows; do echo "go vet for $$os"; GOOS=$$os CGO_ENABLED=0 $(GO) vet ./...; done
	for dir in $(EXAMPLES); do $(GO) -C $$dir vet ./...; done

lint: bin/golangci-lint bin/go-check-sumtype
	bin/golangci-lint run ./...
	bin/go-check-sumtype -test=false ./...

# Built from the module proxy at the versions of tools/go.mod, in a minute when
# nothing is cached.
bin/golangci-lint: tools/go.mod tools/go.sum
	$(GO) build -C tools -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
bin/go-check-sumtype: tools/go.mod tools/go.sum
	$(GO) build -C tools -o ../$@ github.com/alecthomas/go-check-sumtype/cmd/go-check-sumtype

# The real agent CLIs, at the versions of the lock. Only their native programs
# are used, so no install script needs to run.
clis:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(CLIS); \
	elif [ "$${CAISSON_REQUIRE_CLIS:-}" = 1 ]; then echo "CAISSON_REQUIRE_CLIS=1, but npm is missing"; exit 1; \
	else echo "npm is missing: the tests that drive the real agent CLIs will be skipped"; fi

$(CLIS): tests/clis/package.json tests/clis/package-lock.json tests/clis/.npmrc
	npm ci --ignore-scripts --prefix tests/clis
	touch $@

race: clis
	@[ -n "$(RACE)" ] || echo "no C compiler: testing without the race detector"
	$(GO) test $(RACE) -timeout 10m ./...

user:
	@if [ "$$(id -u)" -ne 0 ]; then echo "not root: 'make race' runs as an ordinary user anyway"; exit 0; fi; \
	mkdir -p bin/user; \
	printf '%s\n' $(USER_PKGS) | xargs -P 2 -I{} bash -c ' \
		binary="$$PWD/bin/user/$$(tr / - <<<{}).test"; begun=$$SECONDS; \
		out=$$($(GO) test $(RACE) -c -o "$$binary" ./{} 2>&1 && tools/as-user.sh "$$binary" {} -test.timeout=10m 2>&1); status=$$?; \
		printf "as uid 65534: %s, %s s\n%s\n" {} $$((SECONDS - begun)) "$$out"; exit $$status'

bench: ## every benchmark once: that they run, not how fast
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...

bench-full: ## every benchmark, ten times, one package at a time
	$(GO) test -run '^$$' -bench . -benchmem -count 10 -p 1 ./...

stress: ## the seven invariants COUNT times, as root and as a user; writes docs/stress.log
	COUNT=$(COUNT) tools/stress.sh

soak: ## SESSIONS sessions at once, RUNS times, as root and as a user; writes docs/soak.log
	RUNS=$(RUNS) SESSIONS=$(SESSIONS) TURNS=$(TURNS) CRASHES=$(CRASHES) tools/soak.sh

soak-spawns: ## SPAWNS confined spawns and as many plain ones, as root and as a user; writes docs/soak-spawns.log
	SPAWNS=$(SPAWNS) tools/soak-spawns.sh

crash: ## KILLS orchestrators killed at random moments, as root and as a user; writes docs/crash.log
	KILLS=$(KILLS) tools/crash.sh

big: ## streams of 200 MB, of a line of 64 MB, of a million events, and of random bytes
	$(GO) test -timeout 30m -count 1 -run '^TestBigStreams$$' -v ./tests/e2e -args -big 1

test-full: FUZZTIME = 10m
test-full: test stress soak soak-spawns crash big fuzz ## and what takes too long for CI

fuzz: ## every fuzz target for FUZZTIME; writes docs/fuzz.log
	FUZZTIME=$(FUZZTIME) tools/fuzz.sh

examples: ## builds and runs the examples, each a module of its own
	for dir in $(EXAMPLES); do echo "$$dir"; $(GO) -C $$dir run .; done

# Compares with the tree as it was, so that it also works on uncommitted changes.
generate-check:
	@state() { git diff HEAD; git ls-files --others --exclude-standard -z | xargs -0r sha256sum; }; \
	before=$$(state | sha256sum); $(GO) generate ./...; after=$$(state | sha256sum); \
	if [ "$$before" != "$$after" ]; then echo "go generate changes the tree: commit what it makes"; git status --short; exit 1; fi

clean:
	rm -rf bin dist
