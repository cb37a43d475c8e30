#!/usr/bin/env bats
# The stages on three threads, under ThreadSanitizer (make check-tsan): no race, and the bytes of one thread.

load ../helper/common
load ../helper/study

setup() {
    cart_setup
    case $CART_BIN in *tsan/bin) ;; *) skip 'machine: no build with ThreadSanitizer (make check-tsan makes one)' ;; esac
    cart_tiny llama_tied
    # A race ends the run with this status at once.
    export TSAN_OPTIONS='halt_on_error=1 exitcode=66'
    cart_study_text > c.txt
    cart-tokenize -q -o c.tokens c.txt
}

@test "three threads: cart-selfstudy, cart-teacher, cart-train, cart-eval" {
    study='cart-selfstudy -q -n 6 --held-out 2 --max-a 10 --max-q 8 --chunk 32:64 --context chunk --gen-batch 4'
    train='cart-train -q -p 24 --steps 4 --save-every 2 --eval-every 2'
    for j in 1 3; do
        $study -j $j -o $j.conv c.tokens
        $study -j $j --targets -o $j.same c.tokens
        cart-teacher -q -j $j -o $j.targets $j.conv
        $train -j $j -o $j.cart $j.targets
        $train -j $j --recompute --no-pack -o $j.small $j.targets
        # One cartridge for both, whose name is in the report.
        [ -e common.cart ] || cp 1.cart common.cart
        cart-eval -q -j $j -c common.cart --json $j.targets > $j.eval
    done
    for f in conv same targets cart small eval; do
        cmp 1.$f 3.$f
    done
    cmp 1.cart 1.small
    cmp 1.targets 1.same
}
