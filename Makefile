# larql-grid: the one build file. Non-recursive; every folder is a static archive
# that links only itself and the ones below it.
#
#   make               build/bin/larql-router, larql-shard, larql, build/lib/liblarql_ffn.*
#   make demo          packages, build, model, router + 2 shards, an answer printed
#   make check         all tests            (packages installed when absent)
#   make check-asan    the same under ASan + UBSan    make check-valgrind   a subset
#   make check-tsan    the router's loops under ThreadSanitizer
#   make check-arm64   codecs and kernels, cross-built, under qemu-user
#   make chaos         10,000 kills, freezes and restarts under load (make check has 500)
#   make fuzz FUZZ_S=60    each libFuzzer target for so many seconds
#   make check-vindex  what larql extract writes, by numpy and Hugging Face's tokenizers
#   make golden        runs the outside judges again and rewrites tests/golden
#   make install       PREFIX, DESTDIR; make uninstall, make deb
#
# Variables: DEV=1 (-Werror), SAN=address,undefined, CC, CFLAGS, V=1 (show commands),
#            BUILD (folder), MODEL=path.gguf (for demo), LLHTTP_SRC (llhttp's C sources).

VERSION := $(shell cat VERSION)
BUILD ?= build
PREFIX ?= /usr/local
CFLAGS ?= -O2 -g
FUZZ_S ?= 60
LLHTTP_SRC ?= /usr/share/llhttp
LLHTTP_INC ?= /usr/share/include/llhttp
PYTHON ?= /usr/bin/python3
Q := $(if $(V),,@)

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
ALL_CFLAGS := -std=gnu11 -ffp-contract=off -fno-common -fPIC -pthread $(WARN) $(if $(DEV),-Werror) \
	$(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer) $(CFLAGS)
ALL_CPPFLAGS := -I. -I$(BUILD)/gen -D_GNU_SOURCE -DLQ_VERSION='"$(VERSION)"' -DLLHTTP_STRICT_MODE=1 -I$(LLHTTP_INC) $(CPPFLAGS)
ALL_LDFLAGS := -pthread $(if $(SAN),-fsanitize=$(SAN)) $(LDFLAGS)

LIBS_proto := -ljansson -lm
LIBS_ffn := -levent_core -levent_extra -levent_pthreads -levent_openssl -lssl -lcrypto $(LIBS_proto)
LIBS_common := -lnghttp2 -lprotobuf-c $(LIBS_ffn)
BLIS_DIR := $(firstword $(wildcard /usr/lib/*/blis-serial /usr/lib/*/blis-pthread /usr/lib/*/blis-openmp))
BLIS_INC := $(firstword $(wildcard /usr/include/*/blis-serial /usr/include/*/blis-pthread /usr/include/*/blis-openmp /usr/include/blis))
LIBS_model := $(if $(BLIS_DIR),-L$(BLIS_DIR)) -lblis -lcrypto $(LIBS_common)
LIBS_client := -lpcre2-8 $(LIBS_model)
LIBS_check := -lcheck -lsubunit -lrt

src = $(filter-out %/main.c,$(wildcard $(1)/*.c))
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
GRID_H := $(BUILD)/gen/proto/grid.pb-c.h
GRID_OBJ := $(BUILD)/obj/gen/grid.pb-c.o
LLHTTP_OBJS := $(patsubst %,$(BUILD)/obj/llhttp/%.o,llhttp http api)

ARCHIVES := $(patsubst %,$(BUILD)/lib/%.a,proto common model router shard client)
A_proto := $(BUILD)/lib/proto.a
A_common := $(BUILD)/lib/common.a $(A_proto)
A_model := $(BUILD)/lib/model.a $(A_common)
A_router := $(BUILD)/lib/router.a $(A_common)
A_shard := $(BUILD)/lib/shard.a $(A_model)
A_client := $(BUILD)/lib/client.a $(A_model)
LIBS_router := $(LIBS_common)
LIBS_shard := -lcurl $(LIBS_model)

BINS := $(BUILD)/bin/larql-router $(BUILD)/bin/larql-shard $(BUILD)/bin/larql
FFN_A := $(BUILD)/lib/liblarql_ffn.a
FFN_SO := $(BUILD)/lib/liblarql_ffn.so.$(VERSION)

.PHONY: all
all: $(BINS) $(FFN_A) $(FFN_SO)

# ---- objects ----------------------------------------------------------------
# A changed flag rebuilds everything: each object depends on this stamp.
FLAGS_NOW := $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS)
$(BUILD)/.flags: FORCE
	@mkdir -p $(BUILD)
	@echo '$(subst ','\'',$(FLAGS_NOW))' | cmp -s - $@ || echo '$(subst ','\'',$(FLAGS_NOW))' > $@
.PHONY: FORCE
FORCE:

$(BUILD)/obj/%.o: %.c $(BUILD)/.flags | $(GRID_H)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  CC    $<")
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# The kernels earn -O3: gcc turns their 16-lane loops into vectors only there.
$(BUILD)/obj/model/kern_%.o $(BUILD)/obj/proto/codec_%.o: ALL_CFLAGS += -O3
$(BUILD)/obj/model/gemm_blis.o: ALL_CPPFLAGS += -isystem $(BLIS_INC)

# It includes the page by the assembler, whose files the compiler does not tell.
$(BUILD)/obj/router/page.o: router/page.html

$(BUILD)/obj/llhttp/%.o: $(LLHTTP_SRC)/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	@$(if $(V),,echo "  CC    llhttp/$*.c")
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -w -c $< -o $@

# The grid's messages: before any object, since which ones include them is not known yet.
$(GRID_H) $(GRID_H:.h=.c) &: proto/grid.proto
	@mkdir -p $(BUILD)/gen
	@$(if $(V),,echo "  GEN   $@")
	$(Q)protoc-c --c_out=$(BUILD)/gen $<
$(GRID_OBJ): $(GRID_H:.h=.c) $(BUILD)/.flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -w -c $< -o $@

define archive
$(BUILD)/lib/$(1).a: $(call obj,$(call src,$(1))) $(2)
	@mkdir -p $$(@D)
	@$(if $(V),,echo "  AR    $$@")
	$(Q)rm -f $$@ && $(AR) rcs $$@ $$^
endef
$(foreach d,proto model router shard client,$(eval $(call archive,$(d),)))
$(eval $(call archive,common,$(LLHTTP_OBJS) $(GRID_OBJ)))

# ---- programs and the client library ----------------------------------------
define program
$(BUILD)/bin/$(1): $(BUILD)/obj/$(2)/main.o $(A_$(2))
	@mkdir -p $$(@D)
	@$(if $(V),,echo "  LINK  $$@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $$@ $$(filter %.o %.a,$$^) $(LIBS_$(2))
endef
$(eval $(call program,larql-router,router))
$(eval $(call program,larql-shard,shard))
$(eval $(call program,larql,client))

# What liblarql_ffn is made of: the remote back end and what lies below it, without the
# grid's own protocol and the libraries of that.
FFN_OBJS := $(call obj,$(wildcard client/remote*.c) $(filter-out common/grpc% common/grid%,$(call src,common)) \
	$(call src,proto)) $(LLHTTP_OBJS)
$(FFN_A): $(FFN_OBJS)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$(BUILD)/lib/symbols.map: client/symbols.txt
	@mkdir -p $(@D)
	$(Q)(echo '{ global:'; sed 's/$$/;/' $<; echo 'local: *; };') > $@
$(FFN_SO): $(FFN_OBJS) $(BUILD)/lib/symbols.map
	@$(if $(V),,echo "  LINK  $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,liblarql_ffn.so.0 -Wl,--version-script=$(BUILD)/lib/symbols.map \
		-o $@ $(FFN_OBJS) $(LIBS_ffn)
	$(Q)ln -sf $(notdir $@) $(BUILD)/lib/liblarql_ffn.so.0 && ln -sf $(notdir $@) $(BUILD)/lib/liblarql_ffn.so

# ---- tests: tests/unit/ROOM/test_*.c link ROOM's archive and the ones below ---
UNIT_ROOMS := proto common model router shard client
unit_bins = $(patsubst tests/unit/$(1)/%.c,$(BUILD)/tests/$(1)/%,$(wildcard tests/unit/$(1)/test_*.c))
UNIT_BINS := $(foreach r,$(UNIT_ROOMS),$(call unit_bins,$(r)))
define unit
$(BUILD)/tests/$(1)/%: $(BUILD)/obj/tests/unit/$(1)/%.o $(BUILD)/obj/tests/unit/support.o $(A_$(1))
	@mkdir -p $$(@D)
	@$(if $(V),,echo "  LINK  $$@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $$@ $$(filter %.o %.a,$$^) $(LIBS_check) $(LIBS_$(1))
endef
$(foreach r,$(UNIT_ROOMS),$(eval $(call unit,$(r))))
.SECONDARY:

# Fuzz targets always build (with a replay driver), so that they cannot rot.
FUZZ_SRCS := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_REPLAY := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%-replay,$(FUZZ_SRCS))
$(BUILD)/fuzz/%-replay: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/obj/tests/fuzz/replay.o $(A_model)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o %.a,$^) $(LIBS_model)

include tests/tests.mk
-include $(wildcard bench/bench.mk)

# ---- man pages; installation and packages ----------------------------------------------
# docs/man comes from the option tables; a test says when it is out of date.
.PHONY: man
man: $(BINS)
	$(BUILD)/bin/larql-router --help-man > docs/man/larql-router.1
	$(BUILD)/bin/larql-shard --help-man > docs/man/larql-shard.1
	$(BUILD)/bin/larql run --help-man > docs/man/larql-run.1
	$(BUILD)/bin/larql bench --help-man > docs/man/larql-bench.1
	$(BUILD)/bin/larql info --help-man > docs/man/larql-info.1
	$(BUILD)/bin/larql extract --help-man > docs/man/larql-extract.1
	$(BUILD)/bin/larql verify --help-man > docs/man/larql-verify.1
	$(BUILD)/bin/larql grid --help-man > docs/man/larql-grid.1

include deploy/deploy.mk

.PHONY: clean
clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
