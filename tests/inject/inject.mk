# The library that injects faults and the program that tries them all: tests/inject/README.md. Not sanitized: a
# sanitizer wants to be the first library itself.

INJECT := $(if $(filter release debug cov,$(MODE)),$(addprefix $(B)/inject/,shim.so sweep careless))
tests: $(INJECT)

$(B)/inject/shim.so: tests/inject/shim.c
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -fPIC -shared -o $@ $< -ldl
$(B)/inject/sweep $(B)/inject/careless: $(B)/inject/%: tests/inject/%.c
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -o $@ $<

.PHONY: check-faults check-tsan
check-faults: ## every fault at every point of every tool (make check tries a sample)
	+$(MAKE) $(PARALLEL) MODE=$(MODE) tests
	CART_FAULTS=all tests/run --build $(B) faults
check-tsan: ## the thread pool, and the stages on three threads, under ThreadSanitizer
	+$(MAKE) $(PARALLEL) MODE=tsan all build/tsan/unit/test_pool
	tests/run-one build/tsan/unit/test_pool
	CART_TEST_BUILD=build/tsan tests/run-one tests/inject/threads.bats
