load ../helper/common

setup() {
    cart_setup
    cart_tiny llama_tied
    for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
        echo "Rule $i of the mill says that the wheel turns $((i * 7)) times before noon. The miller counts them."
    done >a.txt
    cart-tokenize -q -o corpus.tokens a.txt
    cart-selfstudy -q -n 24 --held-out 3 --chunk 16:32 --max-q 10 --max-a 12 --seed 5 -o x.conv corpus.tokens
}

records() {
    cart-view "$1" | jq -c 'select(.record == "conv" or .record == "targ")'
}

@test "the manual says what -h says" {
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-teacher.1")" "$(cart_help_usage cart-teacher)"
}

@test "one row for each supervised token; entries fall, end at the mass, are at most top-k" {
    cart-teacher -q -o x.targets x.conv
    cart-view --check x.targets
    records x.targets >t.jsonl
    cart_equal true "$(jq -s 'all((.rows | length) == (.supervised[0][1] - .supervised[0][0]) and .rows[0] == .supervised[0][0])' t.jsonl)"
    cart_equal true "$(jq -s 'all(. as $c | [range(.rows | length)] | all(. as $r |
        ($c.logprobs[$c.offsets[$r]:$c.offsets[$r + 1]]) as $l |
        ($l | length) >= 1 and ($l | length) <= 20 and $l == ($l | sort | reverse) and
        (($l | length) == 20 or ($l | map(exp) | add) >= 0.98999) and
        (($l | length) == 1 or ($l[:-1] | map(exp) | add) < 0.99001)))' t.jsonl)"
    cart-teacher -q -k 1 -o one.targets x.conv
    cart_equal '[1]' "$(records one.targets | jq -sc 'map([range(.rows | length) as $r | .offsets[$r + 1] - .offsets[$r]] | unique[]) | unique')"
}

@test "keeps documents and conversations as they came" {
    cart-teacher -q -o x.targets x.conv
    records x.conv | jq -c 'del(.record)' >a
    records x.targets | jq -c 'del(.record, .rows, .offsets, .target_ids, .logprobs, .entropy)' >b
    cmp a b
    cmp <(cart-view x.conv | jq -c 'select(.record == "doc")') <(cart-view x.targets | jq -c 'select(.record == "doc")')
    cart_equal '["cart-tokenize","cart-selfstudy","cart-teacher"]' \
        "$(cart-view x.targets | jq -c 'select(.record == "head").history | map(.tool)')"
}

@test "-j, CPU path, pipe and cache change nothing" {
    cart-teacher -q -o x.targets x.conv
    cart-teacher -q -j 1 --cache 0 <x.conv >y.targets
    cmp x.targets y.targets
    CART_CPU=generic cart-teacher -q -j 2 -o z.targets x.conv
    cmp x.targets z.targets
}

@test "resumed from any cut of FILE.part: the same bytes" {
    cart-teacher -q -o x.targets x.conv
    size=$(stat -c %s x.targets)
    for part in 1 5 20 40 60 80 99; do
        head -c $((size * part / 100)) x.targets >y.targets.part
        cart-teacher --resume -o y.targets x.conv 2>log
        cmp x.targets y.targets
        rm y.targets
    done
    cart_has log "going on after $(($(grep -c '"conv"' <<< "$(cart-view x.conv | jq -c .record)") - 1)) conversations"
    head -c $((size / 2)) x.targets >y.targets.part
    cart_must_fail 4 cart-teacher -q --resume --mass 0.5 -o y.targets x.conv 2>log
    cart_has log 'mass: saved with 0.99, asked for 0.5'
    [ -e y.targets.part ]
}

@test "FILE.part whose beginning is damaged is named, with the way out" {
    printf 'no stream' >y.targets.part
    cart_must_fail 3 cart-teacher -q --resume -o y.targets x.conv 2>err
    cart_has err 'y.targets.part: '
    cart_has err '; remove it to begin anew'
    cart_equal 'no stream' "$(cat y.targets.part)"
}

@test "what took the name of FILE.part meanwhile stays" {
    mkfifo p
    cart-teacher -o y.targets < p 2> err &
    pid=$!
    exec 9> p
    # The documents and at least a conversation, too few of them for the first that is written.
    head -c $(($(stat -c %s x.conv) * 40 / 100)) x.conv >&9
    until [ -s y.targets.part ] && [ "$(cut -d ' ' -f 3 /proc/$pid/stat)" = S ]; do kill -0 $pid && sleep 0.05; done
    mv y.targets.part moved
    echo other > y.targets.part
    kill -TERM $pid
    exec 9>&-
    wait $pid || cart_equal 143 $?
    cart_must_fail 1 grep -q holds err
    cart_equal other "$(cat y.targets.part)"
}

@test "FILE.part of other conversations is not gone on with" {
    cart-teacher -q -o x.targets x.conv
    head -c $(($(stat -c %s x.targets) * 60 / 100)) x.targets >half
    cart-view x.conv >x.jsonl
    # The same HEAD and documents: an answer's last token is another, a conversation is missing, or all but the first.
    jq -c 'if .record == "conv" and .n == 2 then .ids[-1] = 5 else . end' x.jsonl | cart-view -q --pack -o edited.conv -
    jq -c 'select(.record != "conv" or .n != 2)' x.jsonl | cart-view -q --pack -o without.conv -
    jq -c 'select(.record != "conv" or .n < 1)' x.jsonl | cart-view -q --pack -o few.conv -
    for f in edited without few; do
        cp half y.targets.part
        cart_must_fail 4 cart-teacher -q --resume -o y.targets $f.conv 2>$f.log
        [ ! -e y.targets ]
    done
    # What was done stays, for the input that it was done of.
    cart-teacher -q --resume -o y.targets x.conv
    cmp x.targets y.targets
    cart_has edited.log 'y.targets.part: it was begun with other conversations: conversation 2 differs'
    cart_has without.log 'y.targets.part: it was begun with other conversations: conversation 3 differs'
    cart_has few.log 'and the input 1'
}

@test "cut, foreign and mismatched input leave no output" {
    size=$(stat -c %s x.conv)
    for part in 1 30 70 99; do
        head -c $((size * part / 100)) x.conv >cut.conv
        cart_must_fail 3 cart-teacher -q -o x.targets cut.conv
        [ ! -e x.targets ]
        rm -f x.targets.part
    done
    cart_must_fail 3 cart-teacher -q -o x.targets corpus.tokens
    cart_must_fail 3 cart-teacher -q -o x.targets a.txt
    cart_tiny llama_tied.q8_0
    cart_must_fail 4 cart-teacher -q -o x.targets x.conv 2>log
    cart_has log 'weights'
    cart-teacher -q --allow-other-weights -o q.targets x.conv
    [ ! -e x.targets ] && [ ! -e x.targets.part ]
}

@test "a damaged end of the input does not cost what was done before it" {
    cart-view x.conv > x.jsonl
    # The last conversation stands in the place of the first again.
    jq -c --slurpfile all x.jsonl '[$all[] | select(.record == "conv")] as $c |
        if . == $c[-1] then $c[0] else . end' x.jsonl > bad.jsonl
    cart-view --pack -o bad.conv bad.jsonl
    cart_must_fail 3 cart-teacher -q -o y.targets bad.conv 2> err
    cart_has err 'follows'
    [ -s y.targets.part ]
    cart-teacher -q -o x.targets x.conv
    cart-teacher -q --resume -o y.targets x.conv
    cmp x.targets y.targets
}

@test "too few descriptors are told before the work, and nothing is published" {
    local n done=0
    for n in $(seq 5 2 26); do
        rm -f y.targets*
        if (ulimit -n "$n" && exec cart-teacher -q -o y.targets x.conv) 2> err; then
            done=$((done + 1))
            [ -s y.targets ]
        else
            grep 'Too many open files\|Error 24' err # the latter by what loads the program
            cart_equal 'y.targets*' "$(echo y.targets*)"
        fi
    done
    [ $done -gt 0 ] && [ $done -lt 11 ]
}

@test "too few descriptors leave what a stopped run has kept" {
    local n failed=0
    cart-teacher -q -o x.targets x.conv
    head -c $(($(wc -c < x.targets) / 2)) x.targets > part
    for n in $(seq 5 2 26); do
        rm -f y.targets*
        cp part y.targets.part
        if ! (ulimit -n "$n" && exec cart-teacher -q --resume -o y.targets x.conv) 2> err; then
            failed=$((failed + 1))
            cmp part y.targets.part
        fi
    done
    [ $failed -gt 0 ]
}

@test "an output is written where its link leads, on another file system too" {
    cart-teacher -q -o x.targets x.conv
    far=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || pwd)/cart.XXXXXX")
    mkdir near
    for dir in near "$far"; do
        ln -sf "$dir/real" y.targets
        cart-teacher -q -o y.targets x.conv
        chmod 600 "$dir/real"
        cart-teacher -q -o y.targets x.conv
        cmp x.targets "$dir/real"
        cart_equal "600 $dir/real" "$(stat -c %a "$dir/real") $(readlink y.targets)"
        cart_equal real "$(ls -A "$dir")"
        [ ! -e y.targets.part ]
    done
    rm -r "$far"
}

@test "a span outside its document is refused" {
    cart-view x.conv | jq -c 'if .record == "conv" and .n == 1 then .context_span = [0, 999999] else . end' >bad.jsonl
    cart-view --pack bad.jsonl >bad.conv
    cart_must_fail 3 cart-teacher -q -o x.targets bad.conv 2>log
    cart_has log 'conversation 1: context_span'
}

@test "a full disk is reported, a closed pipe is silent" {
    cart_must_fail 5 cart-teacher -q -o /dev/full x.conv
    run cart_unread cart-teacher -q x.conv
    cart_equal 141 "$status"
    cart_equal '' "$output"
}

@test "--dry-run writes nothing and says what it takes; bad options are usage" {
    cart-teacher --dry-run -o x.targets x.conv 2>log
    [ ! -e x.targets ]
    cart_has log '27 conversations'
    cart_has log 'disk: about'
    cart_must_fail 2 cart-teacher -k 0 x.conv
    cart_must_fail 2 cart-teacher --mass 1.5 x.conv
    cart_must_fail 2 cart-teacher x.conv x.conv
}
