# Included by the Makefile: each bench/NAME.c, and the two in Python, compares two
# things in one run and prints the ratio. Absolute times are this machine's, at this moment.
#
#   make bench                    all of them, a table, and $(BUILD)/bench.json
#   make bench BENCH="codec kern" some of them
#   make bench BENCH_STRICT=1     a missed bar fails

BENCH_BINS := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/*.c))
BENCH_TOOLS := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/tools/*.c))
BENCH_SUPPORT := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard bench/support/*.c))
$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BENCH_SUPPORT) $(A_client)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK  $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(A_client) $(LIBS_client) -ldl

# The router's own rooms, without a router's process.
$(BUILD)/bench/grid: $(BUILD)/obj/bench/grid.o $(BENCH_SUPPORT) $(A_router) $(A_client)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK  $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(BUILD)/lib/router.a $(A_client) $(LIBS_client) -ldl

# llama.cpp, beside the models and outside the tree, in the release that `make golden` asks.
JUDGES := $(MODEL_DIR)/judges
LLAMA_ARCH := $(if $(filter aarch64,$(shell uname -m)),linux-arm64,linux-x64)
LQ_GGML_DIR ?= $(JUDGES)/node_modules/@node-llama-cpp/$(LLAMA_ARCH)/bins/$(LLAMA_ARCH)

BENCH ?= $(patsubst bench/%.c,%,$(wildcard bench/*.c)) activations whole
.PHONY: bench bench-run
bench:
	@deploy/packages.sh build bench
	+@$(SUB) models
	@tests/tools/judges.sh "$(JUDGES)"
	+@$(SUB) bench-run

bench-run: $(BENCH_BINS) $(BENCH_TOOLS) $(BINS)
	@$(TEST_ENV) LQ_GGML_DIR=$(LQ_GGML_DIR) BENCH_STRICT=$(BENCH_STRICT) CC=$(CC) \
		$(PYTHON) bench/run.py $(BUILD) $(BENCH)
