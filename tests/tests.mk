# Included by the Makefile: everything under tests/, and the targets that install
# what they need first. Those build in a second make, since the first one read its
# folders before the packages were there.

SUB := $(MAKE) --no-print-directory
MODEL_DIR := $(if $(LARQL_MODEL_DIR),$(LARQL_MODEL_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/larql-grid/models)
GEMMA := $(MODEL_DIR)/gemma-3-270m-q4_k_m.gguf
SMOLLM2 := $(MODEL_DIR)/SmolLM2-135M-Instruct.Q4_1.gguf
TEST_ENV = LQ_BUILD=$(BUILD) LARQL_MODEL_DIR=$(MODEL_DIR) LQ_MODEL_GEMMA=$(GEMMA) LQ_MODEL_SMOLLM2=$(SMOLLM2) \
	CK_TIMEOUT_MULTIPLIER=$(LQ_TEST_TIMEOUT_X) ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

.PHONY: demo models check check-asan check-valgrind
demo:
	@deploy/packages.sh build demo
	+@$(SUB) all
	+@$(if $(MODEL),,$(SUB) models)
	@LQ_BUILD=$(BUILD) $(PYTHON) deploy/demo.py $(if $(MODEL),"$(MODEL)","$(GEMMA)")

models:
	@LARQL_MODEL_DIR=$(MODEL_DIR) $(PYTHON) tests/tools/fetch_model.py gemma3-270m smollm2-135m

check:
	@deploy/packages.sh build test deploy
	@tests/tools/promtool.sh $(BUILD)/tools
	+@$(SUB) all check-build
	+@$(SUB) models
	+@$(SUB) check-unit
	+@$(SUB) check-corpus
	+@$(SUB) check-grid
	+@$(SUB) check-deploy

ASAN_VARS := BUILD=$(BUILD)/asan SAN=address,undefined LQ_TEST_TIMEOUT_X=8
check-asan:
	@deploy/packages.sh build test
	+@$(SUB) models
	+@$(SUB) $(ASAN_VARS) all check-build
	+@$(SUB) $(ASAN_VARS) check-unit
	+@$(SUB) $(ASAN_VARS) check-corpus
	+@$(SUB) $(ASAN_VARS) check-grid

# The loops of one router beside each other: what they share, under ThreadSanitizer.
TSAN_BUILD := $(BUILD)/tsan
TSAN_TESTS := tests/grid/test_threads.py tests/grid/test_join.py \
	tests/grid/test_chaos.py::test_joined_shards_that_die_cost_no_answer
.PHONY: check-tsan check-tsan-run
check-tsan:
	@deploy/packages.sh build test
	+@$(SUB) models
	+@$(SUB) BUILD=$(TSAN_BUILD) SAN=thread all check-build
	+@$(SUB) BUILD=$(TSAN_BUILD) SAN=thread check-tsan-run

check-tsan-run: export TSAN_OPTIONS = suppressions=$(CURDIR)/tests/tsan.supp exitcode=66
check-tsan-run:
	@set -e; for t in $(filter $(BUILD)/tests/router/%,$(UNIT_BINS)); do $(TEST_ENV) $$t; done
	@$(TEST_ENV) LQ_TEST_TIMEOUT_X=8 LQ_CHAOS_KILLS=100 $(PYTHON) -m pytest -q -p no:cacheprovider $(TSAN_TESTS)

# A shard that dies of an allocation on its compute path. Sanitizers bring their own malloc.
GUARD_SHARD := $(if $(SAN),,$(BUILD)/guard/larql-shard)
$(BUILD)/guard/larql-shard: $(BUILD)/obj/shard/main.o $(BUILD)/obj/tests/tools/alloc_guard.o $(A_shard)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK  $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o %.a,$^) $(LIBS_shard)

# Our gRPC for another implementation to talk to.
GRPC_PEER := $(BUILD)/tests/grpc_peer
$(GRPC_PEER): $(BUILD)/obj/tests/tools/grpc_peer.o $(A_common)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK  $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o %.a,$^) $(LIBS_common)

# Clients that do not forgive, for test_chaos.py.
CHAOS_LOAD := $(BUILD)/tests/chaos_load
$(CHAOS_LOAD): $(BUILD)/obj/tests/tools/chaos_load.o $(A_proto)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK  $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o %.a,$^) $(LIBS_proto)

.PHONY: check-build check-unit check-corpus check-grid chaos
check-build: $(UNIT_BINS) $(FUZZ_REPLAY) $(GUARD_SHARD) $(GRPC_PEER) $(CHAOS_LOAD)

LQ_TEST_TIMEOUT_X ?= 1
check-unit: $(UNIT_BINS)
	@failed=0; for t in $(UNIT_BINS); do $(TEST_ENV) $$t || { echo "FAILED: $$t"; failed=1; }; done; exit $$failed

# Every input that once mattered to a fuzzer, through the same entry point.
check-corpus: $(FUZZ_REPLAY)
	@set -e; for t in $(FUZZ_REPLAY); do name=$$(basename $$t -replay); $(TEST_ENV) $$t tests/fuzz/corpus/$${name#fuzz_}; done

check-grid: $(BINS) $(GUARD_SHARD) $(GRPC_PEER) $(CHAOS_LOAD)
	@$(TEST_ENV) LQ_TEST_TIMEOUT_X=$(LQ_TEST_TIMEOUT_X) $(PYTHON) -m pytest -q -p no:cacheprovider tests/grid

# The 500 faults of check-grid, twenty times.
CHAOS_KILLS ?= 10000
chaos: $(BINS) $(CHAOS_LOAD)
	@$(TEST_ENV) LQ_TEST_TIMEOUT_X=$(LQ_TEST_TIMEOUT_X) LQ_CHAOS_KILLS=$(CHAOS_KILLS) \
		$(PYTHON) -m pytest -q -s -p no:cacheprovider tests/grid/test_chaos.py

# A subset: valgrind slows things twentyfold. Its CPU knows no AVX-512.
VALGRIND_BINS := $(filter $(BUILD)/tests/proto/% $(BUILD)/tests/common/% $(BUILD)/tests/router/% $(BUILD)/tests/model/test_gguf $(BUILD)/tests/model/test_arch,$(UNIT_BINS))
check-valgrind:
	@deploy/packages.sh build test valgrind
	+@$(SUB) check-build
	@set -e; for t in $(VALGRIND_BINS); do echo "valgrind $$t"; CK_TIMEOUT_MULTIPLIER=40 LQ_BUILD=$(BUILD) \
		valgrind -q --error-exitcode=99 --leak-check=full --trace-children=yes $$t; done

# libFuzzer, each target FUZZ_S seconds from its corpus; what it finds more goes to the
# build folder. A crash leaves its input there and fails the target.
FUZZ_BUILD := $(BUILD)/fuzz-clang
FUZZ_BINS := $(patsubst tests/fuzz/%.c,$(FUZZ_BUILD)/fuzz/%,$(FUZZ_SRCS))
.PHONY: fuzz fuzz-run
fuzz:
	@deploy/packages.sh build fuzz
	+@$(SUB) CC=clang BUILD=$(FUZZ_BUILD) FUZZ_BUILD=$(FUZZ_BUILD) SAN=fuzzer-no-link,address,undefined \
		FUZZ_S=$(FUZZ_S) fuzz-run

$(FUZZ_BUILD)/fuzz/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(A_model)
	@mkdir -p $(@D)
	$(Q)$(CC) -pthread -fsanitize=fuzzer,address,undefined -o $@ $(filter %.o %.a,$^) $(LIBS_model)

fuzz-run: $(FUZZ_BINS)
	@set -e; for t in $(FUZZ_BINS); do name=$$(basename $$t); mkdir -p $(FUZZ_BUILD)/found/$$name; \
		echo "fuzz $$name for $(FUZZ_S) s"; \
		$$t -max_total_time=$(FUZZ_S) -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
			-artifact_prefix=$(FUZZ_BUILD)/found/$$name- $(FUZZ_BUILD)/found/$$name tests/fuzz/corpus/$${name#fuzz_} \
			>$(FUZZ_BUILD)/$$name.log 2>&1 || { tail -60 $(FUZZ_BUILD)/$$name.log; exit 1; }; \
		grep -h "number_of_executed_units" $(FUZZ_BUILD)/$$name.log; done

# The outside judges, again: tests/golden/README.md.
.PHONY: golden
golden:
	@deploy/packages.sh golden
	+@$(SUB) models
	@LARQL_MODEL_DIR=$(MODEL_DIR) tests/golden/run.sh

# vindex directories by outside judges: numpy on the format's definition, beside what the gguf
# package makes of the GGUF file; Hugging Face's tokenizers on tokenizer.json.
VENV := $(MODEL_DIR)/judges/venv
.PHONY: check-vindex
check-vindex:
	@deploy/packages.sh build golden
	+@$(SUB) all
	+@$(SUB) models
	@[ -x $(VENV)/bin/python ] || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet numpy gguf==0.19.0 tokenizers==0.23.3
	@LQ_BUILD=$(BUILD) $(VENV)/bin/python tests/tools/vindex_judge.py $(GEMMA) $(SMOLLM2)

# Codecs and kernels as ARM machines run them: cross-built, static, under qemu.
ARM64 := $(BUILD)/arm64
ARM64_SRCS := $(wildcard proto/*.c) model/quant.c $(wildcard model/kern*.c) tests/unit/support.c
ARM64_TESTS := $(patsubst tests/unit/%.c,$(ARM64)/%,$(wildcard tests/unit/proto/test_*.c) $(wildcard tests/unit/model/test_kern*.c))
ARM64_INC := -I. -isystem $(ARM64)/sysroot/root/usr/include -isystem $(ARM64)/sysroot/root/usr/include/aarch64-linux-gnu
ARM64_LIB := $(ARM64)/sysroot/root/usr/lib/aarch64-linux-gnu
.PHONY: check-arm64 check-arm64-run
check-arm64:
	@deploy/packages.sh build arm64
	@tests/tools/arm64_sysroot.sh $(ARM64)/sysroot
	+@$(SUB) check-arm64-run

$(ARM64)/%: tests/unit/%.c $(ARM64_SRCS)
	@mkdir -p $(@D)
	@echo "  CROSS $@"
	$(Q)aarch64-linux-gnu-gcc -static -std=gnu11 -O3 -ffp-contract=off -pthread -D_GNU_SOURCE $(WARN) -Werror $(ARM64_INC) \
		-o $@ $< $(ARM64_SRCS) -L$(ARM64_LIB) -lcheck -lsubunit -ljansson -lm -lrt

check-arm64-run: $(ARM64_TESTS)
	@set -e; for t in $(ARM64_TESTS); do CK_TIMEOUT_MULTIPLIER=20 qemu-aarch64 $$t; done
