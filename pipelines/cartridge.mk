# Documents to a cartridge: each stage a file, each recipe one tool, restartable at every stage.
#
#   make -f pipelines/cartridge.mk MODEL=model.gguf DOCS=docs OUT=out
#   make -f pipelines/cartridge.mk -j 4 SHARDS=4 ...     the same bytes, made by four processes
#
# Variables: MODEL ($CART_MODEL)  DOCS (no default: files, directories, archives, patterns, with blanks between)  OUT (out)
# P rows (256, or all where the corpus has fewer)  N conversations (200)  HELDOUT (8)
# STEPS (0: four passes over the conversations)  SEED (0)  SHARDS (1)  QUESTIONS (JSONL for cart-eval)
# options of single stages: SELFSTUDY_OPTS TEACHER_OPTS TRAIN_OPTS EVAL_OPTS.
# OUT remembers all but MODEL: those that a later call does not give stay as they were, and what differs is made anew.
# Relative names in them are of the folder in which make was called: from another one they are refused, not read anew.
# Documents that were touched, or came and went, are read again; where the corpus is the same, all after it stays.
# Goals: all (the cartridge), eval (the evaluation table), clean (removes what the others made in OUT), help (this).
# Under -j the tools take their threads from make: together they never run more than it was given. Without it each uses
# all cores, one after the other.

OUT     ?= out
REMEMBERED := DOCS P N HELDOUT STEPS SEED SHARDS QUESTIONS SELFSTUDY_OPTS TEACHER_OPTS TRAIN_OPTS EVAL_OPTS
REMEMBERED_IN :=
-include $(OUT)/variables.mk
KEPT    := $(foreach v,$(REMEMBERED),$(if $(filter file,$(origin $(v))),$(if $($(v)),$(v))))

MODEL   ?= $(CART_MODEL)
DOCS    ?=
P       ?=
N       ?= 200
HELDOUT ?= 8
STEPS   ?= 0
SEED    ?= 0
SHARDS  ?= 1
QUESTIONS ?=
BIN     ?= $(if $(CART_BIN),$(CART_BIN)/)

# One word for the shell, whatever it holds.
quote = '$(subst ','\'',$(1))'
# A variable that this file does not know is a slip of the pen. Below another make, it may be one of that make's.
KNOWN   := MODEL OUT BIN CART_MODEL CART_BIN $(REMEMBERED)
unknown = $(error $(1): no such variable: expected \
    $(or $(filter $(shell echo $(call quote,$(1)) | tr a-z A-Z),$(KNOWN)),one of MODEL OUT $(REMEMBERED)))
ifeq ($(MAKELEVEL),0)
$(foreach v,$(.VARIABLES),$(if $(filter command line,$(origin $(v))),$(if $(filter $(v),$(KNOWN)),,$(call unknown,$(v)))))
endif

# The letters of make's own options: -n, -q and -t change nothing, so they may not run a recipe marked with +.
LETTERS := $(filter-out -%,$(firstword $(MAKEFLAGS)))
idle    := $(findstring n,$(LETTERS))$(findstring q,$(LETTERS))$(findstring t,$(LETTERS))
# Only a recipe that begins with + is given make's jobserver.
RUN     := $(if $(idle),,+)

# What a message adds to the name of a variable that this call did not give.
source  = $(if $(filter $(1),$(KEPT)), (remembered in $(OUT)/variables.mk))

# OUT and QUESTIONS are names of targets, in which make takes blanks, colons and the like for its own.
strange = $(shell printf %s $(call quote,$($(1))) | LC_ALL=C tr -d 'A-Za-z0-9._/+,@=\200-\377-')
plain   = $(if $(call strange,$(1))$(filter -%,$($(1))),$(error \
    $(1)='$($(1))'$(call source,$(1)): expected letters, digits and ._/+,@=- only, no - in front))
$(foreach v,OUT QUESTIONS,$(call plain,$(v)))
ifeq ($(strip $(OUT)),)
$(error OUT: expected a folder, found nothing)
endif

.DELETE_ON_ERROR:
.SUFFIXES:
# Every stage's file stays: it is what a stopped run goes on from.
.SECONDARY:
.DEFAULT_GOAL := all
.PHONY: all eval clean help

THIS := $(lastword $(MAKEFILE_LIST))
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(call quote,$(THIS))

ifneq ($(filter clean help,$(MAKECMDGOALS)),)
ifneq ($(word 2,$(MAKECMDGOALS)),)
$(error clean and help: give them alone)
endif

# By name: OUT may be a folder that holds other things as well.
clean:
	rm -rf $(OUT)/shards
	rm -f $(OUT)/*.settings $(OUT)/variables.mk $(OUT)/corpus.tokens* $(OUT)/corpus.targets* $(OUT)/cartridge.safetensors* \
	    $(OUT)/metrics.jsonl* $(OUT)/evaluation.txt*
	if [ -d $(OUT) ]; then rmdir --ignore-fail-on-non-empty $(OUT); fi
else

ifeq ($(strip $(MODEL)),)
$(error MODEL=file.gguf: not set, and neither is CART_MODEL)
endif
ifeq ($(strip $(DOCS)),)
$(error DOCS=folder: not set, and $(OUT) remembers none)
endif
# Elsewhere a remembered name is another file's, or none's. In options every word that is a file there counts as a name.
absent  = $(shell test -e $(call quote,$(1)) || echo none)
ifneq ($(or $(REMEMBERED_IN),$(CURDIR)),$(CURDIR))
named   = $(filter-out /%,$(if $(filter %_OPTS,$(1)),$(foreach w,$(subst =, ,$($(1))),$(if \
    $(call absent,$(REMEMBERED_IN)/$(w)),,$(w))),$($(1))))
$(foreach v,$(filter DOCS QUESTIONS %_OPTS,$(KEPT)),$(if $(call named,$(v)),$(error \
    $(v)='$($(v))'$(call source,$(v)): of the folder $(REMEMBERED_IN): call make there, or give $(v))))
endif
# No tool takes a name for an option.
INPUTS := $(patsubst -%,./-%,$(foreach d,$(DOCS),$(or $(wildcard $(d)),$(d))))
$(foreach d,$(INPUTS),$(if $(call absent,$(d)),$(error \
    DOCS: $(d): no such file or folder$(if $(word 2,$(DOCS)), (make splits DOCS at blanks))$(call source,DOCS))))
$(if $(QUESTIONS),$(if $(call absent,$(QUESTIONS)),$(error QUESTIONS: $(QUESTIONS): no such file$(call source,QUESTIONS))))
MODEL_NAME := $(call quote,$(MODEL))
NAMES  := $(foreach d,$(INPUTS),$(call quote,$(d)))

# A changed variable remakes what depends on it, and nothing else: each stage depends on a file that holds its settings
# and is rewritten only when they differ. No shell sees the settings, so they may hold quotes; the first word makes a
# file of no settings differ from no file. Where make only looks, nothing is written, and the file counts as changed.
same     = $(and $(findstring x$(1)x,x$(2)x),$(findstring x$(2)x,x$(1)x))
kept     = $(call same,$(strip settings $(2)),$(strip $(file <$(OUT)/$(1).settings)))
write    = $(shell mkdir -p $(OUT))$(file >$(OUT)/$(1).settings,settings $(2))
settings = $(OUT)/$(1).settings$(if $(call kept,$(1),$(2)),,$(if $(idle),$(eval .PHONY: $(OUT)/$(1).settings),$(call write,$(1),$(2))))

# What a stopped stage left behind goes on only with what it began with; left by an older input or older settings, it is
# refused by --resume, so it goes first.
forget   = @for f in $(1); do for d in $^; do if [ "$$d" -nt "$$f" ]; then rm -f "$$f"; fi; done; done

ALL_SHARDS := $(shell seq 1 $(call quote,$(SHARDS)) 2>/dev/null)
$(if $(ALL_SHARDS),,$(error SHARDS='$(SHARDS)'$(call source,SHARDS): expected a number from 1))
# A tool that is asked for help as well reads what stands before that, and says what is wrong with it: now, not when its
# turn comes.
refusal = $(if $(strip $($(1))),$(shell \
    e=$$(CART_MODEL= CART_TRACE= MAKEFLAGS= $(BIN)$(2) --help 2>&1 >/dev/null </dev/null) || printf %s "$$e"))
checked = $(foreach word,$(firstword $(call refusal,$(1),$(2))),$(error \
    $(1)='$($(1))'$(call source,$(1)): $(call refusal,$(1),$(2))))
$(call checked,P,cart-train -p $(call quote,$(P)))
$(call checked,N,cart-selfstudy -n $(call quote,$(N)))
$(call checked,HELDOUT,cart-selfstudy --held-out $(call quote,$(HELDOUT)))
$(call checked,SEED,cart-selfstudy --seed $(call quote,$(SEED)))
$(call checked,STEPS,cart-train --steps $(call quote,$(or $(filter-out 0,$(STEPS)),1)))
$(call checked,SELFSTUDY_OPTS,cart-selfstudy $(SELFSTUDY_OPTS))
$(call checked,TEACHER_OPTS,cart-teacher $(TEACHER_OPTS))
$(call checked,TRAIN_OPTS,cart-train $(TRAIN_OPTS))
$(call checked,EVAL_OPTS,cart-eval $(EVAL_OPTS))

# All variables as lines of make, written once nothing is found wrong with them.
hash := \#
line = $(subst $(hash),\$(hash),$(subst $$,$$$$,$(1)))
define lines
REMEMBERED_IN := $(call line,$(CURDIR))
$(foreach v,$(REMEMBERED),$(v) ?= $(call line,$($(v)))
)
endef
ifeq ($(idle),)
$(if $(call same,$(strip $(lines)),$(strip $(file <$(OUT)/variables.mk))),,$(shell mkdir -p $(OUT))$(file \
    >$(OUT)/variables.mk,$(lines)))
endif

CONV    := $(ALL_SHARDS:%=$(OUT)/shards/%-of-$(SHARDS).conv)
TARGETS := $(ALL_SHARDS:%=$(OUT)/shards/%-of-$(SHARDS).targets)

all: $(OUT)/cartridge.safetensors

# The documents as names, sizes and times: one that is gone, new or changed remakes the corpus, whatever its name.
documents := $(shell find -H $(NAMES) -type f -printf '%p %s %T@\n' 2>/dev/null | sort | cksum)

# A corpus of the same bytes stays, with its time, so that nothing after it is made anew; that its settings, which no other
# stage reads, are no newer says that it belongs to them.
$(OUT)/corpus.tokens: $(call settings,tokenize,$(MODEL) $(DOCS) $(documents))
	$(RUN)$(BIN)cart-tokenize -m $(MODEL_NAME) -o $@.new $(NAMES)
	$(if $(P),$(BIN)cart-init -m $(MODEL_NAME) -p $(P) --dry-run $@.new)
	@if cmp -s $@.new $@; then rm -f $@.new && touch -r $@ $<; else mv -f $@.new $@; fi

$(OUT)/shards/%-of-$(SHARDS).conv: $(OUT)/corpus.tokens \
    $(call settings,selfstudy,$(N) $(HELDOUT) $(SEED) $(SELFSTUDY_OPTS))
	@mkdir -p $(@D)
	$(call forget,$@.part)
	$(RUN)$(BIN)cart-selfstudy -m $(MODEL_NAME) -n $(N) --held-out $(HELDOUT) --seed $(SEED) \
	    --shard $*/$(SHARDS) --resume $(SELFSTUDY_OPTS) -o $@ $<

$(OUT)/shards/%.targets: $(OUT)/shards/%.conv $(call settings,teacher,$(TEACHER_OPTS))
	$(call forget,$@.part)
	$(RUN)$(BIN)cart-teacher -m $(MODEL_NAME) --resume $(TEACHER_OPTS) -o $@ $<

$(OUT)/corpus.targets: $(TARGETS)
	$(RUN)$(BIN)cart-view --cat -o $@ $(TARGETS)

$(OUT)/cartridge.safetensors: $(OUT)/corpus.targets $(call settings,train,$(P) $(STEPS) $(SEED) $(TRAIN_OPTS))
	$(call forget,$@.part $@.optimizer.safetensors $(OUT)/metrics.jsonl.part)
	$(RUN)$(BIN)cart-train -m $(MODEL_NAME) $(if $(P),-p $(P)) \
	    $(if $(filter-out 0,$(STEPS)),--steps $(STEPS),--epochs 4) --seed $(SEED) \
	    --resume --metrics $(OUT)/metrics.jsonl $(TRAIN_OPTS) -o $@ $<

eval: $(OUT)/evaluation.txt
	@cat $<

$(OUT)/evaluation.txt: $(OUT)/cartridge.safetensors $(OUT)/corpus.targets $(QUESTIONS) \
    $(call settings,eval,$(QUESTIONS) $(EVAL_OPTS))
	$(RUN)$(BIN)cart-eval -m $(MODEL_NAME) -c $(OUT)/cartridge.safetensors \
	    $(if $(QUESTIONS),--questions $(QUESTIONS)) $(EVAL_OPTS) -o $@ $(OUT)/corpus.targets
endif
