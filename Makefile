# The commands of the project. `make` alone lists them.

# Scale factor of TPC-H for the demo, and how many queries `make fuzz` draws.
SCALE ?= 1
N ?= 5000
# Where `make fuzz` starts; the same seed draws the same queries.
SEED ?= $(shell date +%s)
# Sorted keys of `make bench-index-crates`.
KEYS ?= 67108864

CARGO ?= cargo
MPICC ?= mpicc
PYTHON ?= python3
DATA ?= data
VENV ?= .venv
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
OVERSPILL := $(TARGET_DIR)/debug/overspill

# Always the whole workspace: cargo chooses the features of the dependencies by the packages it is asked for, and
# another choice compiles DataFusion again. The stand-in for the GPU driver, which wants a C++ compiler, is for tests.
CARGO_BUILD := $(CARGO) build --workspace --locked --exclude overspill-emulated-driver
CARGO_TEST := $(CARGO) test --workspace --locked
LOOM := --manifest-path tests/loom/Cargo.toml --target-dir "$(TARGET_DIR)/loom" --locked
INDEX_CRATES := --manifest-path tests/index-crates/Cargo.toml --target-dir "$(TARGET_DIR)/index-crates" --locked

.PHONY: format help demo build data test test-rust test-tpch test-cluster test-gpu-session check-sql check-kernels every-kernel-thread every-kernel-address test-kernels test-faults fuzz fuzz-index fuzz-schedule fuzz-planner fuzz-join-order planted-sql-bugs interrupts kernels mpi test-mpi test-mpi-long gpu-bundle lint bench-spill bench-shuffle bench-index-crates charts check-charts check-docs docs test-docs clean-data

help:
	@echo "make demo [SCALE=1]    build, generate TPC-H, and run a join in ample and in little memory"
	@echo "make test              every test: Rust, differential against DataFusion and DuckDB, TPC-H, TPC-DS"
	@echo "make check-sql         the answers in tests/sql against DuckDB"
	@echo "make check-kernels     the CUDA kernels under sanitizers, and their fatbin against their sources"
	@echo "make test-kernels      the same with all tests, and the bugs that sanitizers must find"
	@echo "make kernels           compile the CUDA kernels anew, after a change of crates/kernels/cuda"
	@echo "make mpi               the library that ranks of MPI jobs load, by this machine's mpicc; make test-mpi starts some"
	@echo "make test-mpi-long     TPC-H among 2, 3, 4 and 8 ranks, and 20 killed ones"
	@echo "make gpu-bundle        what scripts/gpu-session needs to check and measure a machine with a GPU"
	@echo "make test-gpu-session  that session on the emulated device (part of make test)"
	@echo "make fuzz N=5000       random join queries, as many as you like; SEED=… draws the same ones again"
	@echo "make test-cluster      TPC-H on a cluster, and 20 lost executors; make test has a short form"
	@echo "make test-faults       joins whose n-th call, read or poll fails, all of them; make test runs a sixth at a time"
	@echo "make fuzz-index        N=1000000 damaged index files: each lookup is right or refused"
	@echo "make fuzz-schedule     N=1000 thousand random events for the scheduler: bounds on waiting hold"
	@echo "make fuzz-planner      N=100000 random trees of joins: every order gives the same rows; SEED=… starts there"
	@echo "make fuzz-join-order   N=10000 random queries of 2 to 8 tables, in many orders of their joins, checked by DuckDB; SEED=… starts there"
	@echo "make planted-sql-bugs  plants wrong answers into the engine, each of which the random queries must find"
	@echo "make interrupts N=200  Ctrl-C at random moments of every kind of statement; SEED=… draws the same moments again"
	@echo "make lint              formatter, clippy and rustdoc, warnings denied, and the house rules"
	@echo "make bench-spill       the spilling join against its rivals"
	@echo "make bench-shuffle     rows between the tasks of a cluster, compressed and not"
	@echo "make bench-index-crates KEYS=67108864  lookups in sorted keys by our indexes and by other crates"
	@echo "make charts            draw the pictures and write the tables of the pages, of the files in docs/data"
	@echo "make docs              the pages as a site, in target/site; check-docs only checks links and paths"
	@echo "make test-docs         the commands and the SQL of the pages (part of make test)"

build:
	$(CARGO_BUILD)

demo: data
	@scripts/demo "$(OVERSPILL)" "$(DATA)/tpch-sf$(SCALE)"

# The generator keeps files that are there already, and gives a file its name only when it is complete.
data: build
	"$(OVERSPILL)" datagen tpch --scale $(SCALE) --dir "$(DATA)/tpch-sf$(SCALE)"

test: test-rust test-tpch test-gpu-session

# Short forms: `make fuzz` has more queries, `make test-faults` all that can fail, `make check-kernels` more schedules of kernels.
test-rust: $(VENV)/complete
	OVERSPILL_PYTHON="$(abspath $(VENV)/bin/python)" OVERSPILL_FUZZ_QUERIES=$${OVERSPILL_FUZZ_QUERIES:-400} \
		OVERSPILL_TEST_SCHEDULES=$${OVERSPILL_TEST_SCHEDULES:-3} $(CARGO_TEST)
	$(CARGO) test $(LOOM)

test-tpch: build $(VENV)/complete
	"$(OVERSPILL)" datagen tpch --scale 1 --dir "$(DATA)/tpch-sf1"
	"$(VENV)/bin/python" tests/tpch/run.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf1"
	"$(VENV)/bin/python" tests/tpch/memory.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf1" --short
	"$(OVERSPILL)" datagen tpcds --scale 0.01 --dir "$(DATA)/tpcds-sf0.01"
	"$(VENV)/bin/python" tests/tpcds/run.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpcds-sf0.01"
	$(CARGO) build --workspace --locked
	"$(OVERSPILL)" datagen tpch --scale 0.1 --dir "$(DATA)/tpch-sf0.1"
	"$(VENV)/bin/python" tests/tpch/run.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf0.1" --emulated 268435456,16777216
	"$(VENV)/bin/python" tests/tpch/cluster.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf0.1" --kills 2

# Queries on a cluster at full length: a scale factor of 1, rows read over the network and not, 20 killed executors and 3 stopped ones.
test-cluster: build $(VENV)/complete
	"$(OVERSPILL)" datagen tpch --scale 1 --dir "$(DATA)/tpch-sf1"
	"$(VENV)/bin/python" tests/tpch/cluster.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf1" --kills 20 --stops 3
	"$(VENV)/bin/python" tests/tpch/cluster.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf1" --kills 0 \
		--set ballista.shuffle.force_remote_read=true

# What rows between the tasks of a cluster take, compressed and not.
bench-shuffle: build $(VENV)/complete
	"$(OVERSPILL)" datagen tpch --scale 1 --dir "$(DATA)/tpch-sf1"
	"$(VENV)/bin/python" tests/tpch/shuffle.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf1"

# The session that checks and measures a GPU, on the emulated device: a third of its phases, or all with OVERSPILL_TEST_PART=all.
test-gpu-session:
	$(CARGO) build --workspace --locked
	@mkdir -p "$(TARGET_DIR)/gpu-session"
	ln -sf "$$(scripts/kernel-tests)" "$(TARGET_DIR)/gpu-session/kernel-tests"
	for program in overspill gpu-check liboverspill_emulated_driver.so; do \
		ln -sf "$(abspath $(TARGET_DIR))/debug/$$program" "$(TARGET_DIR)/gpu-session/$$program"; \
	done
	OVERSPILL_PROGRAMS="$(abspath $(TARGET_DIR))/gpu-session" $(PYTHON) tests/gpu/test_session.py

$(VENV)/complete: tests/requirements.txt
$(VENV)-docs/complete: docs/requirements.txt
$(VENV)/complete $(VENV)-docs/complete:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Tests and pages need Python with the module venv: install it (on Debian and Ubuntu: apt install python3-venv)." >&2; \
		exit 1; \
	}
	$(PYTHON) -m venv "$(@D)"
	"$(@D)/bin/python" -m pip install --quiet --disable-pip-version-check -r $<
	@touch "$@"

# Whether DuckDB gives the answers that the files of tests/sql have.
check-sql: $(VENV)/complete
	"$(VENV)/bin/python" tests/sql/check_duckdb.py

# Every kernel under sanitizers in several schedules, and whether their fatbin is that of their sources.
check-kernels:
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target every-kernel-thread every-kernel-address
	scripts/build-kernels --check

# A sanitizer runs one test at a time, so two of them share the processors.
every-kernel-thread every-kernel-address: every-kernel-%:
	scripts/test-kernels $* --every-kernel

# All tests under sanitizers, and every planted bug: leave it running.
test-kernels:
	scripts/test-kernels thread
	scripts/test-kernels address
	scripts/planted-bugs

kernels:
	scripts/build-kernels

# What ranks of MPI jobs load, beside each program that there is; it takes the mpicc of this machine.
mpi:
	@mkdir -p "$(TARGET_DIR)"
	$(MPICC) -O2 -Wall -Wextra -Werror -shared -fPIC -o "$(TARGET_DIR)/liboverspill_mpi.so" crates/exchange/mpi/overspill_mpi.c
	for profile in debug release; do \
		mkdir -p "$(TARGET_DIR)/$$profile" && cp "$(TARGET_DIR)/liboverspill_mpi.so" "$(TARGET_DIR)/$$profile/"; \
	done

# Ranks that mpirun starts: their messages, and queries. test-mpi-long has more ranks and a scale factor of 1.
test-mpi: mpi $(VENV)/complete
	OVERSPILL_MPI_LIBRARY="$(abspath $(TARGET_DIR))/liboverspill_mpi.so" $(CARGO_TEST) --test mpi -- --nocapture
	$(CARGO) build --workspace --locked
	"$(OVERSPILL)" datagen tpch --scale 0.1 --dir "$(DATA)/tpch-sf0.1"
	"$(VENV)/bin/python" tests/tpch/ranks.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf0.1" --ranks 3 --ranks-per-node 2 --kills 2 --copies 3,9,18,21

test-mpi-long: mpi build $(VENV)/complete
	"$(OVERSPILL)" datagen tpch --scale 1 --dir "$(DATA)/tpch-sf1"
	"$(VENV)/bin/python" tests/tpch/ranks.py --overspill "$(OVERSPILL)" --data "$(DATA)/tpch-sf1" --kills 20

# What scripts/gpu-session runs, stripped and packed: the machine that has the GPU needs its driver alone. The tests are of the dev
# profile, whose assertions they are written for.
gpu-bundle:
	$(CARGO_BUILD) --release
	@mkdir -p gpu-bundle
	for program in overspill gpu-check; do strip -o gpu-bundle/$$program "$(TARGET_DIR)/release/$$program"; done
	strip -o gpu-bundle/kernel-tests "$$(scripts/kernel-tests)"
	xz --force -6 gpu-bundle/overspill gpu-bundle/gpu-check gpu-bundle/kernel-tests
	@ls -l gpu-bundle

interrupts:
	OVERSPILL_INTERRUPTS=$(N) OVERSPILL_INTERRUPTS_SEED=$(SEED) $(CARGO_TEST) --test integration ctrl_c_leaves -- --nocapture

fuzz: $(VENV)/complete
	@echo "seed $(SEED)"
	OVERSPILL_PYTHON="$(abspath $(VENV)/bin/python)" OVERSPILL_FUZZ_QUERIES=$(N) OVERSPILL_FUZZ_SEED=$(SEED) \
		$(CARGO_TEST) --test integration random_queries_agree -- --nocapture

# The n-th call of a driver, write, read or poll fails, for every n of all joins.
test-faults:
	OVERSPILL_TEST_PART=all $(CARGO_TEST) --test integration -- faults:: device::several:: device::aggregates:: device::taken_back::

# Damages index files: a lookup is right, or is refused.
fuzz-index:
	OVERSPILL_TEST_CASES=$(N) $(CARGO_TEST) --lib damaged_files_are_refused -- --nocapture

# Random arrivals, ends and ticks, in thousands: no query waits beyond its bounds.
fuzz-schedule:
	OVERSPILL_TEST_CASES=$(N) $(CARGO_TEST) --test integration waits_are_bounded -- --nocapture

fuzz-planner:
	@echo "seed $(SEED)"
	OVERSPILL_TEST_CASES=$(N) OVERSPILL_TEST_SEED=$(SEED) $(CARGO_TEST) --lib every_order_gives_the_written_rows -- --nocapture

fuzz-join-order: $(VENV)/complete
	@echo "seed $(SEED)"
	OVERSPILL_PYTHON="$(abspath $(VENV)/bin/python)" OVERSPILL_JOIN_ORDER_QUERIES=$(N) OVERSPILL_FUZZ_SEED=$(SEED) \
		$(CARGO_TEST) --test integration join_order::random -- --nocapture

# Takes half an hour; BUGS=… plants some of them.
planted-sql-bugs: $(VENV)/complete
	OVERSPILL_PYTHON="$(abspath $(VENV)/bin/python)" scripts/planted-sql-bugs $(BUGS)

format:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path tests/loom/Cargo.toml

lint: format
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy $(LOOM) --all-targets -- -D warnings
	$(CARGO) clippy $(INDEX_CRATES) --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	$(PYTHON) scripts/house-rules --self-test
	$(PYTHON) scripts/house-rules
	$(PYTHON) scripts/check-features

bench-spill: build
	"$(OVERSPILL)" bench spill

# All memory in huge pages, theirs too.
bench-index-crates:
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(CARGO) run --release $(INDEX_CRATES) -- --keys $(KEYS)

# Measures nothing: docs/benchmarks.md says how the files in docs/data are made.
charts: build
	scripts/charts "$(OVERSPILL)"

check-charts: build
	scripts/charts "$(OVERSPILL)" --check

check-docs:
	$(PYTHON) scripts/check-docs

docs: check-docs $(VENV)-docs/complete
	"$(VENV)-docs/bin/mkdocs" build --strict

test-docs:
	$(CARGO_TEST) --test integration -- manual:: the_page_of_settings

clean-data:
	rm -rf "$(DATA)"
