# Fuzz targets: tests/fuzz/README.md. `make fuzz` runs each for FUZZ_SECONDS (MODE=fuzz, clang's libFuzzer) and adds
# what it found to build/fuzz/corpus; FUZZ names some of them. The saved corpus is replayed under the sanitizers of gcc
# by build/asan/fuzz/fuzz_*, as part of the asan set of tests/run.

FUZZ_C := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZERS := $(FUZZ_C:tests/%.c=$(B)/%)
FUZZ ?= $(FUZZ_C:tests/fuzz/fuzz_%.c=%)
FUZZ_SECONDS ?= 60
FUZZ_CC ?= clang
# Clang warns of what gcc lets pass, and knows less names of warnings.
FUZZ_WARN := -Wno-format-nonliteral -Wno-unknown-warning-option

# Unrolled kernels are no parsers: they are compiled without counters.
OPT_fuzz  := -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
LINK_fuzz := -fsanitize=address,undefined
LIGHT_fuzz := -fno-sanitize=all
FUZZ_MAIN := $(if $(filter fuzz,$(MODE)),,$(B)/tests/fuzz/driver.o)

$(B)/fuzz/%: $(B)/tests/fuzz/%.o $(B)/tests/fuzz/fuzz.o $(FUZZ_MAIN) $(HELP_O) $(LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(LDFLAGS_ALL) $(if $(FUZZ_MAIN),,-fsanitize=fuzzer) -o $@ $^ $(DEP_LIBS) -lm -ldl

.PHONY: fuzz deps-fuzz
deps-fuzz: ## the same for make fuzz
fuzz: deps-fuzz ## libFuzzer on every parser; FUZZ=NAME FUZZ_SECONDS=N (tests/fuzz/README.md)
	+$(MAKE) $(PARALLEL) MODE=fuzz CC=$(FUZZ_CC) CFLAGS='$(CFLAGS) $(FUZZ_WARN)' $(FUZZ:%=build/fuzz/fuzz/fuzz_%)
	tests/fuzz/run $(FUZZ_SECONDS) $(FUZZ)

-include $(FUZZ_C:%.c=$(B)/%.d) $(B)/tests/fuzz/fuzz.d $(B)/tests/fuzz/driver.d
