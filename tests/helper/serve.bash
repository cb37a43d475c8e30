# For tests of a running cart-serve; loaded after common.
#   serve_start ARG...   starts it on a free port, with its words in serve.log; sets SERVE_URL, SERVE_PID
#   serve_end [STATUS]   TERM, and it must exit with that status (default 0)

serve_start() {
    : > serve.log # there before it is read, and without the words of an earlier one
    cart-serve -m "$CART_MODEL" --name m --port 0 "$@" 2>>serve.log 3>&- &
    SERVE_PID=$!
    local i
    for i in $(seq 200); do
        SERVE_URL=$(sed -n 's/.*ready on \(http[^ ]*\).*/\1/p' serve.log)
        [ -n "$SERVE_URL" ] && return 0
        kill -0 "$SERVE_PID" 2>/dev/null || break
        sleep 0.05
    done
    cat serve.log >&2
    return 1
}

serve_end() {
    local status=0
    kill -TERM "$SERVE_PID"
    wait "$SERVE_PID" || status=$?
    SERVE_PID=
    [ "$status" -eq "${1-0}" ] && return 0
    echo "expected exit status ${1-0} of the server, found $status" >&2
    tail -n 20 serve.log >&2
    return 1
}

# What teardown calls: a test that failed leaves no server behind.
serve_kill() {
    [ -z "${SERVE_PID-}" ] || kill -KILL "$SERVE_PID" 2>/dev/null || true
}

# get PATH [CURL-ARG...], post PATH JSON [CURL-ARG...]: the body. status_of …: the status alone.
get() { curl -s -m 60 "${@:2}" "$SERVE_URL$1"; }
post() { curl -s -m 60 -H 'Content-Type: application/json' -d "$2" "${@:3}" "$SERVE_URL$1"; }
status_of() { "$@" -o /dev/null -w '%{http_code}'; }

# metric NAME: its value.
metric() { get /metrics | awk -v name="cart_$1" '$1 == name { print $2 }'; }

# until_metric NAME VALUE: waits at most ten seconds for it.
until_metric() {
    local i
    for i in $(seq 200); do
        [ "$(metric "$1")" = "$2" ] && return 0
        sleep 0.05
    done
    echo "$1: expected $2, found $(metric "$1")" >&2
    return 1
}
