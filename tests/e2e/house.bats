#!/usr/bin/env bats
# What every tool has in common: help, version, usage errors, a full disk, closed standard descriptors.

load ../helper/common

tools() {
    local t
    for t in "$CART_ROOT"/tools/cart-*.c; do
        basename "$t" .c
    done
}

@test "-h and --help print the same usage on standard output and succeed" {
    for t in $(tools); do
        "$t" -h > h 2> err
        "$t" --help > help 2>> err
        cmp h help
        cart_equal '' "$(cat err)" "$t: standard error"
        cart_equal "usage: $t [-hqvV]" "$(head -n 1 h | cut -c "1-$((15 + ${#t}))")"
    done
}

@test "-V names tool, compiler, CPU path and libraries" {
    for t in $(tools); do
        "$t" -V > v 2> err
        cart_equal "$t" "$(awk 'NR == 1 { print $1 }' v)"
        grep -qE "^$t [0-9]+\.[0-9]+" v
        cart_equal 'compiler: cpu: libraries: ' "$(awk 'NR > 1 { printf "%s ", $1 }' v)"
        cart_equal '' "$(cat err)" "$t: standard error"
    done
}

@test "cart(7) says of each shared option which tools have it" {
    sed -n '/^\.Ss Options that mean the same/,/^\.El/p' "$CART_ROOT/man/cart.7" | awk '
        function flush() { if (name != "") print name, (butnot ? "but" : of != "" ? "only" : "but") of; of = ""; butnot = 0 }
        /^\.It/ { flush(); for (i = 1; i < NF - 1; i++) if ($i == "Fl" && $(i + 1) == "Fl") name = $(i + 2) }
        /^All but$/ { butnot = 1 }
        /^\.Xr/ { of = of " " $2 }
        END { flush() }' > said
    [ "$(wc -l < said)" -eq 12 ]
    while read -r name which list; do
        for t in $(tools); do
            "$t" -h > h
            has=no
            ! grep -qE -- "--$name( |$)" h || has=yes
            case $which,\ $list\  in
                but,*\ "$t"\ *) want=no ;; but,*) want=yes ;; *\ "$t"\ *) want=yes ;; *) want=no ;;
            esac
            cart_equal "$want" "$has" "$t --$name"
        done
    done < said
}

@test "the manuals tell the bounds of numbers that a user may meet" {
    cart_need_tool mandoc
    local t option n=0
    for t in $(tools); do
        { mandoc -T ascii "$CART_ROOT/man/$t.1"; mandoc -T ascii "$CART_ROOT/man/cart.7"; } | col -bx | tr -s '\n ' '  ' > page
        for option in $("$t" -h | grep -oE '^ +(-., )?--[a-z-]+ [A-Z]+( |$)' | grep -oE -- '--[a-z-]+'); do
            # Other options take what is no number.
            "$t" "$option=99999999999999999999" < /dev/null > out 2> err || true
            sed -n 's/.*expected a \(whole \)*number from \(.*\), found.*/\2/p' err | sed 's/e-0/e-/' > bounds
            # The larger ones are there to stop what would overflow.
            awk '$3 <= 100000 || $1 > 1 || ($1 > 0 && $1 < 1) { exit 1 }' bounds && continue
            n=$((n + 1))
            grep -qwF -e "$(cat bounds)" page || { echo "$t $option: expected $(cat bounds) in its manual" >&2; return 1; }
        done
    done
    [ "$n" -ge 25 ]
}

@test "an unknown option is one line on standard error and status 2" {
    for t in $(tools); do
        cart_must_fail 2 "$t" --no-such-option > out 2> err
        cart_equal "$t: unknown option --no-such-option: see $t -h" "$(cat err)"
        cart_equal '' "$(cat out)" "$t: standard output"
        cart_must_fail 2 "$t" --hel > out 2> err
    done
}

@test "a CPU path that does not exist is status 2" {
    for t in $(tools); do
        CART_CPU=sse9 cart_must_fail 2 "$t" -V > out 2> err
        cart_has err 'CART_CPU: expected generic, avx2 or avx512, found sse9'
    done
}

@test "help to a full disk is status 5" {
    for t in $(tools); do
        cart_must_fail 5 "$t" -h > /dev/full 2> err
        cart_equal "$t: standard output: writing: No space left on device" "$(cat err)"
    done
}

@test "help into a pipe that nobody reads dies silently by SIGPIPE" {
    for t in $(tools); do
        run cart_unread "$t" -h
        cart_equal 141 "$status" "$t"
        cart_equal '' "$output" "$t: standard error"
    done
}

@test "help to a closed standard output is no crash" {
    for t in $(tools); do
        cart_must_fail 5 "$t" -h >&- 2> err
        cart_has err 'standard output: writing: Bad file descriptor'
    done
}

@test "CART_TRACE records start and exit of every process under one run" {
    t=$(tools | sed -n 1p)
    CART_TRACE=trace CART_TRACE_RUN=r1 cart_must_fail 2 "$t" --no-such-option 2> err
    cart_equal 'exit r1 2' "$(jq -r '[.event, .run, .status] | join(" ")' trace)"
}

@test "under make -j a tool takes free tokens of the jobserver and gives them back" {
    cart_need_tool make
    cat > Makefile <<'EOF'
all: a b
a: ; +-cart-train -m absent.gguf -o x < /dev/null 2> err.a
b: ; +-cart-train -m absent.gguf -o x < /dev/null 2> err.b
alone: ; -cart-train -m absent.gguf -o x < /dev/null 2> err.alone
given: ; +-cart-train -j 5 -m absent.gguf -o x < /dev/null 2> err.given
EOF
    export CART_TRACE=$PWD/trace
    cpus=$(nproc)
    make -s -j3 a > log 2>&1
    most=$((cpus < 3 ? cpus : 3))
    cart_equal "$most" "$(jq -r 'select(.event == "start") | .jobs' trace)" 'jobs with two free tokens'
    rm trace
    make -s -j3 all >> log 2>&1
    cart_equal 2 "$(jq -r 'select(.event == "start") | select(.jobs >= 1 and .jobs <= 3) | .jobs' trace | wc -l)"
    rm trace
    make -s -j3 alone >> log 2>&1
    cart_equal 1 "$(jq -r 'select(.event == "start") | .jobs' trace)" 'jobs without access to the pipe'
    rm trace
    make -s -j3 given >> log 2>&1
    cart_equal 5 "$(jq -r 'select(.event == "start") | .jobs' trace)" 'jobs as given'
    # make counts its tokens at the end and would complain.
    cart_must_fail 1 grep -i internal log
}

@test "a tool that a signal ends gives back the tokens of make's jobserver" {
    cart_need_tool make
    cart_tiny llama_tied
    mkfifo never
    exec 9<> never
    # One tool that saves its state at a signal, and one that does not.
    cat > Makefile <<'EOF'
all: teacher eval
teacher eval: ; +-timeout -s $(SIGNAL) 0.5 cart-$@ < never > /dev/null; echo "$$?"
EOF
    export CART_TRACE=$PWD/trace
    for signal in TERM HUP PIPE; do
        make -s -j6 SIGNAL=$signal >> log 2>&1 9>&-
    done
    exec 9>&-
    cart_equal 6 "$(grep -c '^124$' log)" 'tools ended by timeout'
    jq -e -s 'map(select(.event == "start" and .jobs > 1)) | length > 0' trace
    cart_must_fail 1 grep -i internal log
}

@test "no model named: every tool that needs one says how, with status 2" {
    unset CART_MODEL
    for f in "$CART_ROOT"/tools/cart-*.c; do
        t=$(basename "$f" .c)
        $t -h | grep -q -- '--model' || continue
        cart_must_fail 2 $t < /dev/null 2> words
        cart_has words 'give -m FILE or set CART_MODEL'
        CART_MODEL= cart_must_fail 2 $t < /dev/null 2> words
        cart_must_fail 2 $t -m '' < /dev/null 2> words
    done
}

@test "a file that may not grow is a failed write, not a death" {
    cart_tiny llama_tied
    head -c 60000 "$CART_ROOT/README.md" "$CART_ROOT/GNUmakefile" > text
    cart_must_fail 5 bash -c 'ulimit -f 4; cart-tokenize -q -o out.tokens text' 2> words
    cart_has words 'File too large'
    [ ! -e out.tokens ]
}

@test "a file that is read is never the one that is written: status 2, and it stays" {
    cart_tiny llama_tied
    cp "$CART_MODEL" model.gguf
    seq 200 > input
    ln input linked
    ln -s input pointed
    mkdir folder
    for f in "$CART_ROOT"/tools/cart-*.c; do
        t=$(basename "$f" .c)
        $t -h | grep -q -- '--output' || continue
        for out in input ./input linked pointed folder/../input; do
            cart_must_fail 2 $t -q -o $out input 2> words
            cart_equal "$t: --output $out: the same file as input" "$(cat words)"
        done
        cart_must_fail 2 $t -q -o linked < input 2> words
        cart_has words 'the same file as standard input'
        cart_must_fail 2 $t -q input >> linked 2> words
        cart_has words 'standard output: the same file as input'
        cart_must_fail 2 $t -q -o new new 2> words
        $t -h | grep -q -- '--model' || continue
        cart_must_fail 2 $t -q -m model.gguf -o model.gguf input 2> words
        cart_has words 'the same file as --model'
    done
    cart_must_fail 2 cart-eval -q -c input -o input absent
    cart_must_fail 2 cart-eval -q --questions input -o input absent
    cart_must_fail 2 cart-init -q --init input -o input absent
    cart_must_fail 2 cart-train -q --init input -o input absent
    cart_must_fail 2 cart-train -q --metrics input -o out input
    cart_must_fail 2 cart-train -q --metrics ./out -o out input 2> words
    cart_has words 'the same file as --output'
    seq 200 | cmp - input
    cmp "$CART_MODEL" model.gguf
    # A word of an option is no file.
    touch random
    cart-tokenize -q -o tokens input
    cart-init -q -p 20 --init random -o random tokens
}

@test "-v says more than is said without it" {
    cart_tiny llama_tied
    seq 200 > input
    cart-tokenize -q -o tokens input
    small='-n 4 --held-out 1 --chunk 8:16 --max-q 8 --max-a 8'
    cart-selfstudy -q $small -o conv tokens
    cart-teacher -q -o targets conv
    cart-init -q -p 20 -o rows tokens
    cp input again
    more() {
        "$@" > said 2> without
        "$1" -v "${@:2}" > said.more 2> with
        cmp said said.more
        [ "$(wc -l < with)" -gt "$(wc -l < without)" ] || { echo "$1 -v says no more" >&2; return 1; }
    }
    more cart-tokenize input again -o out
    more cart-init -p 20 -o out tokens
    more cart-selfstudy $small -o out tokens
    cart_has with ' tokens read a second and '
    cart_equal 5 "$(grep -c ': conversation [0-4]: [a-z]' with)" 'a line for each conversation'
    more cart-teacher -o out conv
    cart_has with 'cart-teacher: conv: 1 document, '
    cart_has with ' entries a row'
    more cart-train -p 20 --steps 1 -o out targets
    more cart-eval -c rows targets
    more cart-equiv -p 20 tokens
    more cart-ask -c rows --max-tokens 4 hi
    more cart-view --check rows
}

@test "a folder that is not there is named" {
    cart_tiny llama_tied
    seq 200 > input
    cart-tokenize -q -o tokens input
    for t in cart-tokenize cart-view; do
        cart_must_fail 5 $t -q -o no/out tokens 2> words
        cart_equal "$t: no/out: its folder no: No such file or directory" "$(cat words)"
    done
    cart_must_fail 5 cart-selfstudy -q -n 1 --chunk 8:16 --max-q 8 --max-a 8 -o no/out tokens 2> words
    cart_equal 'cart-selfstudy: no/out.part: its folder no: No such file or directory' "$(cat words)"
    # Nor is a link that leads nowhere a surprise at the end.
    ln -s no/out link
    ln -s loop loop
    cart_must_fail 5 cart-selfstudy -q -n 1 --chunk 8:16 --max-q 8 --max-a 8 -o link tokens 2> words
    cart_equal 'cart-selfstudy: no/out.part: its folder no: No such file or directory' "$(cat words)"
    cart_must_fail 5 cart-init -q -p 20 -o link tokens 2> words
    cart_equal 'cart-init: no/out: its folder no: No such file or directory' "$(cat words)"
    cart-selfstudy -q -n 1 --held-out 0 --chunk 8:16 --max-q 8 --max-a 8 -o conv tokens
    cart_must_fail 5 cart-teacher -q -o link conv 2> words
    cart_has words 'no/out.part: its folder no'
    cart-teacher -q -o targets conv
    for option in -o --metrics; do
        cart_must_fail 5 cart-train -q -p 20 --steps 1 -o out $option link targets 2> words
        cart_has words 'no/out.part: its folder no'
        cart_must_fail 5 cart-train -q -p 20 --steps 1 -o out $option loop targets 2> words
        cart_has words 'loop: Too many levels of symbolic links'
    done
    cart_must_fail 5 cart-teacher -q -o loop conv 2> words
    cart_equal 'cart-teacher: loop: Too many levels of symbolic links' "$(cat words)"
    cart_equal 'out*' "$(echo out*)"
}

@test "a trace that cannot be written is said once, and the run goes on" {
    cart_tiny llama_tied
    seq 200 > input
    for path in /dev/full no/folder; do
        CART_TRACE=$path cart-tokenize -q -o tokens input 2> words
        [ ! -s words ] || { cat words; false; }
        CART_TRACE=$path cart-tokenize -o tokens input 2> words
        cart_equal 1 "$(grep -c "warning: CART_TRACE: $path" words)"
        cart-view --check tokens
    done
    CART_TRACE=/dev/full cart-tokenize -o tokens input 2> words
    cart_has words 'CART_TRACE: /dev/full: writing: No space left on device'
}

@test "a FIFO that nobody reads, or reads from, holds nothing up" {
    cart_tiny llama_tied
    seq 200 > input
    mkfifo trace
    CART_TRACE=trace timeout 20 cart-tokenize -o tokens input 2> words
    cart_has words 'cart-tokenize: warning: CART_TRACE: trace: No such device or address'
    # Full, with a reader that only keeps it open.
    exec 8<> trace
    head -c 65536 /dev/zero >&8
    CART_TRACE=trace timeout 20 cart-tokenize -o tokens input 2> words 8>&-
    exec 8>&-
    cart_equal 1 "$(grep -c 'warning: CART_TRACE: trace: writing: Resource temporarily unavailable' words)"
    cart-view --check tokens
}

@test "a trace to a socket is given up at once" {
    cart_need_tool python3
    cart_tiny llama_tied
    seq 200 > input
    python3 - <<'PY'
import os, resource, socket, subprocess
sock = socket.socket(socket.AF_UNIX)
sock.bind("trace")
os.mkfifo("fifo")
def waits(path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
    words = subprocess.run(["cart-tokenize", "-o", "tokens", "input"], stderr=subprocess.PIPE, check=True,
                           env=dict(os.environ, CART_TRACE=path)).stderr.decode()
    assert "warning: CART_TRACE: %s: No such device or address" % path in words, words
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before
# A reader of the FIFO is waited for, a hundred times a hundredth of a second.
trace, fifo = waits("trace"), waits("fifo")
assert fifo > trace + 40, (trace, fifo)
PY
}

@test "an event behind a torn line begins one of its own" {
    cart_tiny llama_tied
    seq 200 > input
    CART_TRACE=trace cart-tokenize -q -o tokens input
    truncate -s -9 trace
    CART_TRACE=trace cart-tokenize -q -o tokens input
    cart_equal 4 "$(wc -l < trace)"
    tail -n +3 trace | jq -e -s 'map(.event) == ["start", "exit"]'
}

@test "a trace whose reader has gone is said once, and the run goes on" {
    cart_tiny llama_tied
    seq 200 > input
    mkfifo trace
    CART_TRACE=trace cart-tokenize -o tokens input 2> words &
    pid=$!
    # The first to read the trace goes as soon as somebody writes it.
    true < trace
    wait $pid
    cart_equal 1 "$(grep -c 'warning: CART_TRACE: trace: writing: Broken pipe' words)"
    cart-view --check tokens
}

@test "a name of a descriptor is written where that stands, and what is in its file stays" {
    cart_tiny llama_tied
    seq 200 > input
    cart-tokenize -q -o tokens input
    cart-view tokens > listing
    ln -s /dev/stdout link
    for name in /dev/stdout /dev/fd/1 /proc/self/fd/1 link; do
        { echo first; cart-view -q -o $name tokens; echo last; } > made
        { echo first; cat listing; echo last; } | cmp - made
        echo first > log
        cart-view -q -o $name tokens >> log
        { echo first; cat listing; } | cmp - log
    done
    [ -L /dev/stdout ]
    echo first > log
    cart-init -q -p 20 -o /dev/fd/3 tokens 3>> log
    cart-init -q -p 20 -o rows tokens
    { echo first; cat rows; } | cmp - log
    cart_must_fail 5 cart-view -q -o /dev/fd/3 tokens 3< listing 2> words
    cart_equal 'cart-view: /dev/fd/3: Bad file descriptor' "$(cat words)"
}

@test "an option that would change nothing is refused" {
    cart_tiny llama_tied
    : > input
    refused() { # WORDS COMMAND...
        local words=$1
        shift
        cart_must_fail 2 "$@" 2> err < input
        cart_has err "$words"
    }
    for t in cart-selfstudy cart-teacher; do
        for where in '' '-o -' '-o /dev/null' --dry-run; do
            # shellcheck disable=SC2086
            refused ': --resume: expected a file to go on with: -o FILE' $t --resume $where
        done
    done
    refused ': saved states need a file for the cartridge: -o FILE' cart-train --resume
    refused ': --max-tokens: not with --no-pack' cart-train --no-pack --max-tokens 99
    for init in '' '--init spread' '--init corpus' '--init input'; do
        # shellcheck disable=SC2086
        refused ': --seed goes with --init random' cart-init $init --seed 1
    done
    for init in '' '--init spread' '--init corpus' '--init random'; do
        # shellcheck disable=SC2086
        refused ': --allow-other-weights goes with --init FILE' cart-init $init --allow-other-weights
    done
    refused ': --allow-other-weights goes with -c' cart-ask --allow-other-weights word
    refused ': --allow-other-weights goes with -c or -d' cart-serve --allow-other-weights
    refused ': --host and --port: not with --no-tcp' cart-serve --no-tcp --unix sock --port 0
    refused ': --host and --port: not with --no-tcp' cart-serve --no-tcp --unix sock --host ::1
}

@test "two outputs do not share a file, a pipe or standard output" {
    cart_tiny llama_tied
    seq 200 > input
    cart-tokenize -q -o tokens input
    cart-selfstudy -q -n 5 --held-out 0 --chunk 8:16 --max-q 8 --max-a 8 --targets -o targets tokens
    mkfifo fifo
    refused() { # WORDS COMMAND...
        local words=$1
        shift
        cart_must_fail 2 "$@" 2> err | cat > made
        [ ! -s made ]
        cart_has err "$words"
    }
    train='cart-train -q -p 20 --steps 2'
    refused ': --metrics fifo: the same file as --output fifo' $train --metrics fifo -o fifo targets
    refused ': --metrics -: the same file as standard output' $train --metrics - targets
    refused ': --metrics -: the same file as --output -' $train --metrics - -o - targets
    refused ': --metrics /dev/stdout: the same file as standard output' $train --metrics /dev/stdout targets
    export CART_TRACE=/dev/stdout
    refused ': CART_TRACE /dev/stdout: the same file as standard output' cart-eval --json targets
    refused ': CART_TRACE /dev/stdout: the same file as standard output' cart-equiv -p 20 tokens
    refused ': CART_TRACE /dev/stdout: the same file as --metrics -' $train --metrics - -o c targets
    unset CART_TRACE
    [ -z "$(ls c* 2> /dev/null)" ]
    $train --metrics /dev/null targets > /dev/null
    $train --metrics - -o c targets | cart-view --check -
    CART_TRACE=/dev/stdout cart-tokenize -q -o tokens input | grep -q '"event":"exit"'
}

@test "a trace into a file that is read or written is refused, and the file stays" {
    cart_tiny llama_tied
    cp "$CART_MODEL" m.gguf
    seq 200 > input
    refused() { # WORDS CART_TRACE COMMAND...
        local words=$1 path=$2
        shift 2
        CART_TRACE=$path cart_must_fail 2 "$@" > made 2> err < /dev/null
        cart_has err "CART_TRACE$words"
    }
    for path in input m.gguf; do
        cp "$path" kept
        refused ": $path: expected a file of events" "$path" cart-tokenize -m m.gguf -o tokens input
        refused ": $path: expected a file of events" "$path" cart-tokenize --no-such-option
        cmp "$path" kept
    done
    refused ' tokens: the same file as --output tokens' tokens cart-tokenize -m m.gguf -o tokens input
    refused ' made: the same file as standard output' made cart-tokenize -m m.gguf input
    [ ! -s tokens ]
    : > empty
    ln empty other
    refused ' other: the same file as empty' other cart-tokenize -m m.gguf -o tokens empty
    [ ! -s empty ]
    mkdir -p docs/in
    cp input docs/in
    refused ' docs/trace: in docs, which is read' docs/trace cart-tokenize -m m.gguf --count docs
    refused ' docs/in/trace: in docs, which is read' docs/in/trace cart-ask -m m.gguf --text docs word
    refused ' made: the same file as standard output' made cart-ask -m m.gguf word
    kept='is the name of a file that is kept meanwhile'
    refused " m.jsonl.part: $kept" m.jsonl.part cart-train -m m.gguf --metrics m.jsonl -o c input
    refused " c.part: $kept" c.part cart-train -m m.gguf -o c input
    refused " c.optimizer.safetensors: $kept" c.optimizer.safetensors cart-train -m m.gguf -o c input
    for t in cart-selfstudy cart-teacher; do
        refused " ./c.part: $kept" ./c.part $t -m m.gguf -o c input
    done
    cart_equal docs/in "$(ls -d docs/* c.* m.jsonl* 2> /dev/null)"
    # Events are gone on with.
    rm -f trace
    for i in 1 2; do
        CART_TRACE=trace cart-tokenize -q -m m.gguf -o tokens input
    done
    cart_equal 4 "$(wc -l < trace)"
    cart_must_fail 2 env CART_TRACE=trace cart-view trace 2> err
}

@test "what was written is said in one line, but not with -q and not of a pipe" {
    cart_tiny llama_tied
    seq 200 > input
    cart-tokenize -o tokens input 2> words
    grep -qE '^cart-tokenize: wrote tokens, [0-9.]+ (bytes|KiB): 1 document$' words
    cart-selfstudy -n 5 --held-out 0 --chunk 8:16 --max-q 8 --max-a 8 -o conv tokens 2> words
    grep -qE '^cart-selfstudy: wrote conv, [0-9.]+ KiB: [0-9] conversations?$' words
    cart-teacher -o targets conv 2> words
    grep -qE '^cart-teacher: wrote targets, [0-9.]+ KiB: [0-9] conversations?$' words
    cart-train -p 20 --steps 2 --metrics m.jsonl -o c targets 2> words
    grep -qE '^cart-train: wrote c, [0-9.]+ KiB: 20 rows after 2 steps$' words
    grep -qE '^cart-train: wrote m.jsonl, [0-9.]+ bytes: losses and rates$' words
    cart-init -p 20 -o i tokens 2> words
    grep -qE '^cart-init: wrote i, [0-9.]+ KiB: 20 rows$' words
    cart-eval -c c -o report targets 2> words
    grep -qE '^cart-eval: wrote report, [0-9.]+ (bytes|KiB): [0-9] students$' words
    cart-view -o listing targets 2> words
    grep -qE '^cart-view: wrote listing, [0-9.]+ KiB: 1 file read$' words
    cart-view -q -o listing targets 2> words
    cart-view targets 2>> words > listing
    cart_equal '' "$(cat words)" words
}

@test "a test that lacks its data is skipped and says why, and fails where data are demanded" {
    cat > fake <<-'END'
	#!/bin/sh
	echo '1..4'
	echo 'ok 1 - works'
	echo '# skipped: some.file is not here'
	echo 'not ok 2 # SKIP lacks'
	echo 'not ok 3 # SKIP says_nothing'
	echo 'not ok 4 - fails'
	exit 1
	END
    chmod +x fake
    unset CART_REQUIRE_DATA
    cart_must_fail 1 "$CART_ROOT/tests/run-one" "$PWD/fake" > out
    cart_has out 'ok 2 - lacks # SKIP some.file is not here'
    cart_has out 'ok 3 - says_nothing # SKIP its data are not here'
    cart_has out 'not ok 4 - fails'
    export CART_REQUIRE_DATA=1
    cart_must_fail 1 "$CART_ROOT/tests/run-one" "$PWD/fake" > out
    cart_has out 'not ok 2 - lacks'
}
