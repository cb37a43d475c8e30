# Documents to a cartridge: each stage a file, each recipe one tool, restartable at every stage.
#
#   make -f pipelines/cartridge.mk MODEL=model.gguf DOCS=docs OUT=out
#   make -f pipelines/cartridge.mk -j 4 SHARDS=4 ...     the same bytes, made by four processes
#
# Variables: MODEL ($CART_MODEL)  DOCS (files, directories, archives)  OUT (out)  P rows (256)  N conversations (200)
# HELDOUT (32)  STEPS (0: one pass over the conversations)  SEED (1)  SHARDS (1)  QUESTIONS (JSONL for cart-eval)
# Give the same variables to every call on one OUT: what differs is made anew.
# And options of single stages: SELFSTUDY_OPTS TEACHER_OPTS TRAIN_OPTS EVAL_OPTS.
# Goals: all (the cartridge), eval (the evaluation table), clean.

MODEL   ?= $(CART_MODEL)
DOCS    ?= docs
OUT     ?= out
P       ?= 256
N       ?= 200
HELDOUT ?= 32
STEPS   ?= 0
SEED    ?= 1
SHARDS  ?= 1
QUESTIONS ?=
BIN     ?= $(if $(CART_BIN),$(CART_BIN)/)

ifeq ($(MODEL),)
$(error MODEL=file.gguf: not set, and neither is CART_MODEL)
endif

# make splits at blanks; a folder of half a name must not be made, let alone removed.
$(foreach v,MODEL OUT QUESTIONS,$(if $(word 2,$($(v))),$(error $(v)='$($(v))': make cannot take a path with blanks)))

.DELETE_ON_ERROR:
.SUFFIXES:
# Every stage's file stays: it is what a stopped run goes on from.
.SECONDARY:
.PHONY: all eval clean

# A changed variable remakes what depends on it, and nothing else: each stage depends on a file that holds its settings
# and is rewritten only when they differ. No shell sees the settings, so they may hold quotes; the first word makes a
# file of no settings differ from no file.
same     = $(and $(findstring x$(1)x,x$(2)x),$(findstring x$(2)x,x$(1)x))
kept     = $(call same,$(strip settings $(2)),$(strip $(file <$(OUT)/$(1).settings)))
settings = $(shell mkdir -p $(OUT))$(if $(call kept,$(1),$(2)),,$(file >$(OUT)/$(1).settings,settings $(2)))$(OUT)/$(1).settings

# What a stopped stage left behind goes on only with what it began with; left by an older input or older settings, it is
# refused by --resume, so it goes first.
forget   = @for f in $(1); do for d in $^; do if [ "$$d" -nt "$$f" ]; then rm -f "$$f"; fi; done; done

ALL_SHARDS := $(shell seq 1 $(SHARDS))
CONV    := $(ALL_SHARDS:%=$(OUT)/shards/%-of-$(SHARDS).conv)
TARGETS := $(ALL_SHARDS:%=$(OUT)/shards/%-of-$(SHARDS).targets)

all: $(OUT)/cartridge.safetensors

# The documents as names, sizes and times: one that is gone, new or changed remakes the corpus, whatever its name.
documents := $(shell find $(DOCS) -type f -printf '%p %s %T@\n' 2>/dev/null | sort | cksum)

$(OUT)/corpus.tokens: $(call settings,tokenize,$(MODEL) $(DOCS) $(documents))
	$(BIN)cart-tokenize -m $(MODEL) -o $@ $(DOCS)

$(OUT)/shards/%-of-$(SHARDS).conv: $(OUT)/corpus.tokens $(call settings,selfstudy,$(N) $(HELDOUT) $(SEED) $(SELFSTUDY_OPTS))
	@mkdir -p $(@D)
	$(call forget,$@.part)
	$(BIN)cart-selfstudy -m $(MODEL) -n $(N) --held-out $(HELDOUT) --seed $(SEED) --shard $*/$(SHARDS) --resume \
	    $(SELFSTUDY_OPTS) -o $@ $<

$(OUT)/shards/%.targets: $(OUT)/shards/%.conv $(call settings,teacher,$(TEACHER_OPTS))
	$(call forget,$@.part)
	$(BIN)cart-teacher -m $(MODEL) --resume $(TEACHER_OPTS) -o $@ $<

$(OUT)/corpus.targets: $(TARGETS)
	$(BIN)cart-view --cat -o $@ $(TARGETS)

$(OUT)/cartridge.safetensors: $(OUT)/corpus.targets $(call settings,train,$(P) $(STEPS) $(SEED) $(TRAIN_OPTS))
	$(call forget,$@.part $@.optimizer.safetensors $(OUT)/metrics.jsonl.part)
	$(BIN)cart-train -m $(MODEL) -p $(P) $(if $(filter-out 0,$(STEPS)),--steps $(STEPS)) --seed $(SEED) --resume \
	    --metrics $(OUT)/metrics.jsonl $(TRAIN_OPTS) -o $@ $<

eval: $(OUT)/evaluation.txt
	@cat $<

$(OUT)/evaluation.txt: $(OUT)/cartridge.safetensors $(OUT)/corpus.targets $(QUESTIONS) $(call settings,eval,$(QUESTIONS) $(EVAL_OPTS))
	$(BIN)cart-eval -m $(MODEL) -c $(OUT)/cartridge.safetensors $(if $(QUESTIONS),--questions $(QUESTIONS)) \
	    $(EVAL_OPTS) -o $@ $(OUT)/corpus.targets

clean:
	rm -rf $(OUT)
