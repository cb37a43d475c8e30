#!/usr/bin/env bats
# cart-serve with memory refused once, at its start and while it answers. CART_FAULTS=all tries every allocation.

load ../helper/common
load ../helper/serve

SHIM=${CART_BIN%/bin}/inject/shim.so
REQUEST='{"messages":[{"role":"user","content":"hello"}],"temperature":0,"max_tokens":6,"response_format":{"type":
    "json_schema","json_schema":{"name":"f","schema":{"type":"object","properties":{"a":{"type":"integer"}}}}}}'

setup() {
    cart_setup
    cart_need_tool curl jq
    [ -x "$SHIM" ] || skip 'machine: the library that injects faults is not built (sanitized builds have none)'
    cart_tiny qwen3
    SERVE_PID=
    seq 1 60 | sed 's/$/ sheep in the rain/' | cart-tokenize -q - | cart-init -q -p 12 -o one.safetensors
}

teardown() {
    serve_kill
}

# An answer that is whole; or a refusal that says so, or a connection that ends, which are counted.
ask() {
    local status=0
    status=$(post /v1/chat/completions "$REQUEST" -o answer -w '%{http_code}') || status=000
    case $status in
        200) jq -r '.choices[0] | .message.content' answer > said && cmp want said ;;
        5??) jq -e '.error.message' answer > said && refused=$((refused + 1)) ;;
        000) refused=$((refused + 1)) ;;
        *) echo "status $status: $(cat answer)" >&2; return 1 ;;
    esac
}

# serve_without N: the server whose n-th allocation is refused, three requests, and its end.
serve_without() {
    local status=0
    : > serve.log
    LD_PRELOAD=$SHIM CART_INJECT=$1 CART_INJECT_COUNT=count cart-serve -m "$CART_MODEL" -c one=one.safetensors -j 1 \
        --port 0 2>> serve.log 3>&- &
    SERVE_PID=$!
    until grep -q 'ready on' serve.log || ! kill -0 $SERVE_PID 2> /dev/null; do sleep 0.02; done
    SERVE_URL=$(sed -n 's/.*ready on \(http[^ ]*\).*/\1/p' serve.log)
    if [ -n "$SERVE_URL" ]; then
        refused=0
        ask && ask && ask || return 1
        [ "$refused" -le 1 ] || { echo "$refused requests were refused" >&2; return 1; }
        kill -TERM $SERVE_PID 2> /dev/null || true
    fi
    wait $SERVE_PID || status=$?
    SERVE_PID=
    case $status in
        0) [ -n "$SERVE_URL" ] ;;
        5) tail -n 1 serve.log | grep -q '^cart-serve: ' ;;
        *) echo "status $status" >&2; return 1 ;;
    esac
}

@test "cart-serve: no memory once" {
    serve_start -c one=one.safetensors -j 1
    post /v1/chat/completions "$REQUEST" | jq -r '.choices[0] | .message.content' > want
    serve_end
    serve_without alloc-once:0
    points=$(cat count)
    every=1
    [ "${CART_FAULTS-}" = all ] || every=$((points / 16))
    for n in $(seq 1 "$every" "$points"); do
        serve_without "alloc-once:$n" || { echo "alloc-once:$n"; cat serve.log; return 1; } >&2
    done
    echo "# $points $((points / every)) 0 alloc-once cart-serve" >&3
}
