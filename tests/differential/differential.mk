# cart-tokenize against the Python package tokenizers: COUNT strings (default 1200000), half an hour on two cores.
.PHONY: check-tokenizers check-exact
check-tokenizers: deps-check ## cart-tokenize against the Python package tokenizers, on a million hostile strings
	+$(MAKE) $(PARALLEL) MODE=$(MODE) all
	tests/differential/run $(B) $(COUNT)

check-exact: check-tokenizers
