#!/usr/bin/env bats
# The tools together: pipes, the makefile, shards, stages that die, and what may not depend on how a run was made.
load ../helper/common

setup() {
    cart_setup
    cart_tiny llama_tied
    mkdir docs
    cp "$CART_ROOT"/examples/manual/1-overview.md "$CART_ROOT"/examples/manual/4-care.md docs/
}

SMALL='--held-out 2 --max-a 16 --max-q 12 --chunk 32:96 --context chunk --seed 5'

run_whole() {
    cart-tokenize -q docs/ | cart-selfstudy -q -n 8 $SMALL | cart-teacher -q |
        cart-train -q -p 40 --steps 6 -o "$1"
    echo "${PIPESTATUS[*]}" > status
    [ "$(cat status)" = '0 0 0 0' ]
}

@test "one pipeline from documents to a cartridge that answers" {
    run_whole x.safetensors
    cart-view --check x.safetensors
    cart-ask -q -c x.safetensors --max-tokens 4 'What is the lark?' > answer
    [ -s answer ]
}

@test "-j 1, -j 2, one CPU path or another: the same cartridge, metadata and all" {
    run_whole want
    for j in 1 2 3; do
        cart-tokenize -q docs/ | cart-selfstudy -q -n 8 $SMALL -j $j --gen-batch $j | cart-teacher -q -j $j |
            cart-train -q -p 40 --steps 6 -j $j -o got
        cmp want got
    done
    export CART_CPU=generic
    run_whole got
    cmp want got
}

@test "the makefile: one shard or three, parallel, gone on after a kill" {
    mk() {
        make -s -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs N=9 HELDOUT=2 P=40 STEPS=6 SEED=5 \
            SELFSTUDY_OPTS='--max-a 16 --max-q 12 --chunk 32:96 --context chunk' "$@"
    }
    mk OUT=one SHARDS=1
    mk -j 3 OUT=three SHARDS=3
    cmp one/corpus.targets three/corpus.targets
    cmp one/cartridge.safetensors three/cartridge.safetensors
    # A second run has nothing to do.
    touch stamp
    mk OUT=one SHARDS=1
    [ stamp -nt one/cartridge.safetensors ]
    # Killed anywhere, and started again until it is through.
    for delay in 0.05 0.15 0.3 0.6 1 2; do
        timeout -s KILL $delay make -s -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs OUT=cut N=9 HELDOUT=2 P=40 STEPS=6 \
            SEED=5 SHARDS=2 SELFSTUDY_OPTS='--max-a 16 --max-q 12 --chunk 32:96 --context chunk' \
            TRAIN_OPTS='--save-every 2' && break
        sleep 0.1
    done
    mk OUT=cut SHARDS=2 TRAIN_OPTS='--save-every 2'
    cmp one/cartridge.safetensors cut/cartridge.safetensors
}

@test "the makefile: other variables after a stop, quotes in options, an evaluation of its own settings" {
    mk() {
        make -s -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs OUT=o N=9 HELDOUT=2 P=40 SEED=5 \
            SELFSTUDY_OPTS="--max-a 16 --max-q 12 --chunk '32:96' --context chunk" "$@"
    }
    mk STEPS=6
    mv o/cartridge.safetensors want
    cart-train -q -p 40 --steps 400 --seed 5 --save-every 1 --metrics o/metrics.jsonl -o o/cartridge.safetensors \
        o/corpus.targets &
    pid=$!
    until [ -e o/cartridge.safetensors.optimizer.safetensors ] || ! kill -0 $pid 2> /dev/null; do :; done
    kill -TERM $pid
    cart_must_fail 143 wait $pid
    # What that run left is of other settings: the makefile drops it instead of handing it to --resume.
    sleep 0.1
    mk STEPS=6 TRAIN_OPTS='--lr 0.01'
    [ ! -e o/cartridge.safetensors.optimizer.safetensors ]
    cart_must_fail 1 cmp -s want o/cartridge.safetensors
    mk STEPS=6 TRAIN_OPTS=
    cmp want o/cartridge.safetensors
    mk STEPS=6 eval > one
    mk STEPS=6 EVAL_OPTS=--json eval > two
    cart_must_fail 1 cmp -s one two
    # What is not given stays as it was, so that nothing is made anew for an evaluation.
    touch stamp
    make -s -f "$CART_ROOT/pipelines/cartridge.mk" OUT=o EVAL_OPTS= eval > three
    cmp one three
    cart_equal 'eval.settings evaluation.txt variables.mk' \
        "$(find o -newer stamp -type f -printf '%f\n' | sort | xargs)" 'what was written'
}

@test "a stage whose producer died publishes nothing" {
    cart-tokenize -q -o c.tokens docs/
    cart-selfstudy -q -n 4 $SMALL -o c.conv c.tokens
    cart-teacher -q -o c.targets c.conv
    for f in c.tokens c.conv c.targets; do
        size=$(wc -c < $f)
        for at in 7 $((size / 3)) $((size / 2)) $((size - 40)) $((size - 1)); do
            head -c $at $f > cut
            case $f in
                c.tokens) cart_must_fail 3 cart-selfstudy -q -n 4 $SMALL -o out cut ;;
                c.conv) cart_must_fail 3 cart-teacher -q -o out cut ;;
                c.targets) cart_must_fail 3 cart-train -q -p 40 --steps 2 -o out cut ;;
            esac
            [ ! -e out ]
            rm -f out.* # what was learnt before the cut is kept, and would be in the way
        done
    done
}

@test "a stage that is given another stage's stream says which it expects" {
    cart-tokenize -q -o c.tokens docs/
    cart-init -q -p 16 -o c.safetensors c.tokens
    cart-selfstudy -q -n 4 $SMALL -o c.conv c.tokens
    says() { # FILE EXPECTED FOUND MAKER COMMAND...
        local file=$1 want=$2 found=$3 hint=$4
        shift 4
        cart_must_fail 3 "$@" "$file" 2> words
        cart_equal "$1: $file: expected a $want stream, found a $found ($hint)" "$(cat words)"
    }
    says c.tokens conversations 'tokens stream' 'cart-selfstudy makes one of tokens' cart-teacher -o out
    says c.tokens targets 'tokens stream' 'cart-teacher makes one of conversations' cart-train -p 40 -o out
    says c.conv targets 'conversations stream' 'cart-teacher makes one of conversations' cart-eval
    says c.conv tokens 'conversations stream' 'cart-tokenize makes one of documents' cart-selfstudy -o out
    says c.safetensors targets 'safetensors file' 'cart-eval takes a cartridge with -c, cart-train with --init' cart-eval
    # Nor is what they make a document.
    says() { # FILE FOUND
        cart_must_fail 3 cart-tokenize -q -o out "$1" 2> words
        cart_equal "cart-tokenize: expected a document, found none: $1: $2" "$(cat words)"
    }
    says c.tokens 'a tokens stream, which goes to cart-selfstudy'
    says c.conv 'a conversations stream, which goes to cart-teacher'
    says c.safetensors 'a safetensors file: a model goes with -m, a cartridge to cart-ask with -c'
    says "$CART_MODEL" 'a GGUF file: a model goes with -m'
    cart_must_fail 3 cart-ask --text c.tokens hi 2> words
    cart_has words 'a tokens stream, which goes to cart-selfstudy'
    # An option is named by the tool that has it.
    echo '<html><p>It is.' > page.html
    seq 99 > long
    cart_must_fail 3 cart-ask --text page.html hi 2> words
    cart_equal 'cart-ask: expected a document, found none: page.html: HTML: convert it with pandoc -t plain' "$(cat words)"
    says page.html 'HTML: convert it with pandoc -t plain, or take it as it is with --markup'
    cart_must_fail 3 cart-tokenize --max-document 100 -o out long 2> words
    cart_has words 'long: expected at most 100 bytes, found more: --max-document allows more'
    cart_must_fail 2 cart-tokenize --max-document 10Q long 2> words
    cart_has words "expected a whole number from 1 to 1073741824, or one with K, M or G behind it, found '10Q'"
    cart_must_fail 2 cart-tokenize --cuont long 2> words
    cart_has words 'did you mean --count'
    cart_must_fail 3 cart-selfstudy -o out "$CART_ROOT/README.md" 2> words
    cart_has words 'README.md'
    [ ! -e out ]
}

@test "a full device is an error of every stage" {
    [ -e /dev/full ] || skip "machine: no /dev/full"
    cart-tokenize -q -o c.tokens docs/
    cart-selfstudy -q -n 4 $SMALL -o c.conv c.tokens
    cart-teacher -q -o c.targets c.conv
    cart_must_fail 5 sh -c 'cart-tokenize -q docs/ > /dev/full'
    cart_must_fail 5 sh -c "cart-selfstudy -q -n 4 $SMALL c.tokens > /dev/full"
    cart_must_fail 5 sh -c 'cart-teacher -q c.conv > /dev/full'
    cart_must_fail 5 sh -c 'cart-train -q -p 40 --steps 1 c.targets > /dev/full'
    cart_must_fail 5 sh -c 'cart-view c.tokens > /dev/full'
    cart_must_fail 5 sh -c 'cart-eval -q c.targets > /dev/full'
}

@test "the tools of README are those of cart(7)" {
    sed -n '/^\.It Xr cart-[a-z-]* 1$/{s/^\.It Xr \([a-z-]*\) 1$/\1/;N;s/\n/ | /;p}' "$CART_ROOT/man/cart.7" > manual
    sed -n 's/^| `\(cart-[a-z-]*\)` | \(.*\) |$/\1 | \2/p' "$CART_ROOT/README.md" > readme
    diff manual readme
    [ "$(wc -l < manual)" -eq "$(ls "$CART_ROOT"/tools/cart-*.c | wc -l)" ]
}

@test "the makefile sees documents come, go and change; paths with blanks are refused" {
    mk() {
        make -s -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs OUT=out N=2 HELDOUT=1 P=32 STEPS=1 \
            SELFSTUDY_OPTS='--max-a 8 --max-q 8 --chunk 32:64 --context chunk' "$@"
    }
    documents() { cart-view out/corpus.tokens | grep -c '"record":"doc"'; }
    mk
    [ "$(documents)" -eq 2 ]
    echo 'The lid is green. It was never red.' > 'docs/50%#1: x$y.txt'
    mk
    [ "$(documents)" -eq 3 ]
    rm docs/4-care.md
    mk
    [ "$(documents)" -eq 2 ]
    touch stamp
    mk
    [ -z "$(find out -newer stamp -type f)" ]
    # Touched documents, and one that is read for nothing, are looked at again; what was made of them stays.
    touch docs/*
    printf '\0\0' > docs/x.bin
    mk -n > plan
    cart_has plan 'cart-tokenize'
    mk 2> words
    cart_has words 'x.bin'
    cart_equal '' "$(find out -newer stamp -type f)" 'what was made anew'
    mk -q
    mk
    [ -z "$(find out -newer stamp -type f)" ]
    cart_must_fail 2 mk OUT='my out'
    [ ! -e my ]
    cart_must_fail 2 mk clean OUT='out docs'
    [ -e out ] && [ -e docs ]
}

@test "the makefile: looking touches nothing, clean takes away what was made and no more" {
    mk() {
        make -s -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs N=2 HELDOUT=1 P=32 STEPS=1 \
            SELFSTUDY_OPTS='--max-a 8 --max-q 8 --chunk 32:64 --context chunk' "$@"
    }
    mk -n OUT=out > plan
    cart_has plan 'cart-train'
    mk -n clean OUT=out
    cart_must_fail 1 mk -q OUT=out
    [ ! -e out ]
    mkdir out
    echo mine > out/notes.txt
    mk OUT=out
    mk -q OUT=out
    find out | sort > before
    # Other settings are seen by looking, and looking leaves the old ones.
    mk -n OUT=out P=33 > plan
    cart_equal cart-train "$(grep -oE 'cart-[a-z]+ -m' plan | cut -d' ' -f1)"
    mk -q OUT=out
    CART_MODEL= mk clean OUT=out
    cart_equal 'out/notes.txt' "$(find out -type f)"
    # Nothing is taken for granted: neither a folder of that name nor a variable that is not one.
    cart_must_fail 2 make -f "$CART_ROOT/pipelines/cartridge.mk" OUT=new 2> words
    cart_has words 'DOCS=folder: not set'
    cart_must_fail 2 env -u MAKELEVEL -u MAKEFLAGS make -n -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs OUT=new n=99 2> words
    cart_has words 'n: no such variable: expected N'
    cart_must_fail 2 env -u MAKELEVEL -u MAKEFLAGS make -n -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs OUT=new FOO=1 2> words
    cart_has words 'FOO: no such variable: expected one of MODEL OUT DOCS'
    MAKELEVEL=1 make -n -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs OUT=new FOO=1 > plan
    [ ! -e new ]
    cart_must_fail 2 mk clean all OUT=out 2> words
    cart_has words 'clean and help: give them alone'
    for bad in '' 'a:b' 'a%b' 'a#b' "a'b" 'a;b' 'a*' '-a'; do
        cart_must_fail 2 mk OUT="$bad" 2> words
        cart_has words 'OUT'
    done
    cart_must_fail 2 mk OUT=out QUESTIONS=-q 2> words
    cart_has words "QUESTIONS='-q': expected letters"
    cp -r docs ./-docs
    mk -n OUT=out DOCS=-docs > plan
    cart_has plan "'./-docs'"
    cart_must_fail 2 mk OUT=out SHARDS=many 2> words
    cart_has words "SHARDS='many': expected a number from 1"
    cart_must_fail 2 mk OUT=out DOCS='docs absent' 2> words
    cart_has words 'DOCS: absent: no such file or folder'
}

@test "the makefile: a wrong value is found before anything is made, and is not remembered" {
    export CART_TRACE=$PWD/trace
    mk() { make -s -f "$CART_ROOT/pipelines/cartridge.mk" DOCS=docs OUT=out "$@"; }
    for bad in P=0 N=many HELDOUT=-1 STEPS=1.5 SEED=x SHARDS=0 "N=1'2" SELFSTUDY_OPTS='--context chunks' \
        TEACHER_OPTS=--mass TRAIN_OPTS=--lrr=3 EVAL_OPTS=--josn; do
        cart_must_fail 2 mk "$bad" 2> words
        cart_has words "${bad%%=*}='${bad#*=}': "
        [ ! -e out ]
    done
    cart_has words 'cart-eval: unknown option --josn'
    cart_must_fail 2 mk QUESTIONS=absent.jsonl 2> words
    cart_has words 'QUESTIONS: absent.jsonl: no such file.'
    [ ! -e out ] && [ ! -e trace ]
    # Where one is remembered all the same, the message says where.
    mkdir out
    echo 'SHARDS = none' > out/variables.mk
    cart_must_fail 2 mk 2> words
    cart_has words "SHARDS='none' (remembered in out/variables.mk): expected"
}

@test "the makefile: remembered names are of the folder in which it was called" {
    mk() { make -s -f "$CART_ROOT/pipelines/cartridge.mk" "$@"; }
    mk DOCS=docs OUT=out N=2 HELDOUT=1 P=32 STEPS=1 SELFSTUDY_OPTS='--max-a 8 --max-q 8 --chunk 32:64 --context chunk'
    out=$PWD/out
    mkdir -p else/docs
    echo 'Other documents.' > else/docs/x.txt
    cd else
    for opts in -n -q ''; do
        cart_must_fail 2 mk $opts OUT="$out" 2> words
        cart_has words "DOCS='docs' (remembered in $out/variables.mk): of the folder ${out%/out}: call make there"
    done
    mk -n OUT="$out" DOCS=docs > plan
    cart_has plan "$out/tokenize.settings"
    cart_must_fail 1 grep -w anew plan
    cd ..
    # Absolute names are the same everywhere; in options those of files count.
    cp out/cartridge.safetensors rows.safetensors
    mk DOCS="$PWD/docs" OUT="$out"
    cd else
    mk -q OUT="$out"
    cd ..
    mk OUT="$out" TRAIN_OPTS="--init=rows.safetensors"
    cd else
    cart_must_fail 2 mk OUT="$out" 2> words
    cart_has words "TRAIN_OPTS='--init=rows.safetensors' (remembered in"
    mk -n OUT="$out" TRAIN_OPTS= > plan
}

@test "the makefile: names that the shell would read, and the threads that make has" {
    mkdir "it's here"
    cp "$CART_MODEL" "it's here/a \$(model).gguf"
    cp docs/1-overview.md "docs/q'uo;te&.md"
    export CART_TRACE=$PWD/trace
    make -s -j 2 -f "$CART_ROOT/pipelines/cartridge.mk" MODEL="it's here/a \$\$(model).gguf" DOCS='docs/*' OUT=out N=2 \
        HELDOUT=1 P=32 STEPS=1 SELFSTUDY_OPTS='--max-a 8 --max-q 8 --chunk 32:64 --context chunk'
    cart-view --check out/cartridge.safetensors
    cart_equal 3 "$(cart-view out/corpus.tokens | grep -c '"record":"doc"')"
    most=$(nproc)
    cart_equal "$((most < 2 ? most : 2))" "$(jq -r 'select(.tool == "cart-train" and .event == "start") | .jobs' trace)" \
        'threads of the only stage at work'
}
