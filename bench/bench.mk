# Included by the Makefile: each bench/NAME.c is a program that compares two things in
# one run and prints the ratio. Absolute times are this machine's, at this moment.

BENCH_BINS := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/*.c))
BENCH_SUPPORT := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard bench/support/*.c))
$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BENCH_SUPPORT) $(A_model)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LINK  $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o %.a,$^) $(LIBS_model)

.PHONY: bench
bench: $(BENCH_BINS)
	@for b in $(BENCH_BINS); do echo "== $$(basename $$b)"; $$b; done
