#!/usr/bin/env bats
# cart-train: the same bytes by every way, and what it leaves behind when it is stopped.
load ../helper/common
load ../helper/study

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    cart_tiny llama_tied
    cart_study_streams
    cart-train -q -p 48 --steps 10 -o want.safetensors c.targets
}

setup() {
    cart_setup
    cart_tiny llama_tied
    ln -s "$BATS_FILE_TMPDIR"/c.* "$BATS_FILE_TMPDIR/want.safetensors" .
}

@test "help, version and the manual agree" {
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-train.1")" "$(cart_help_usage cart-train)" synopsis
    cart-train --version | grep -q '^cart-train '
    cart_must_fail 2 cart-train --no-such-option
    cart_must_fail 2 cart-train --steps 3 --epochs 2 c.targets
    cart_must_fail 2 cart-train --no-pack --max-tokens 2048 c.targets
    cart_must_fail 2 cart-train --lr nan c.targets
    cart_must_fail 2 cart-train --save-every 3 c.targets
    for f in x x.part x.optimizer.safetensors; do
        cart_must_fail 2 cart-train -q -p 48 --steps 2 -o x --metrics $f c.targets
    done
}

# A model of random weights has nothing to generalise from, so its held-out loss may do what it likes.
@test "training lowers the loss of what it trains on" {
    cart_need_tool jq
    cart-train -q -p 48 --steps 60 --metrics m.jsonl -o t.safetensors c.targets
    jq -es 'map(select(.split == "train") | .kl) | (.[:6] | add) > 1.2 * (.[-6:] | add)' m.jsonl
    jq -es 'map(select(.split == "held-out") | .step) == [0, 50, 60]' m.jsonl
    jq -es 'map(select(.split == "train")) | length == 60 and .[0].lr < 0.02 and .[2].lr == 0.02' m.jsonl
    cart-view --check t.safetensors
}

@test "steps add up over the cartridge that a training began with" {
    cart_need_tool jq
    cart-view --data want.safetensors | jq -c 'if .metadata then .metadata |= (del(.["cart.data"], .["cart.sum"]) |
        .["cart.precision"] = "bf16" | .["cart.corpus"] |= (.[1:] + "0")) else . end' | cart-view -q --pack -o before -
    cart-train -q --init before --steps 2 -o t c.targets
    cart-view t | jq -r 'select(.metadata) | .metadata | [.["cart.steps"], .["cart.precision"], .["cart.corpus"]] | @tsv' > found
    cart-view want.safetensors | jq -r 'select(.metadata) | .metadata | ["12", "bf16", .["cart.corpus"]] | @tsv' > expected
    cmp expected found
}

@test "the same cartridge whatever threads, processor, packing, recompute and pipe" {
    common='-q -p 48 --steps 10'
    cart-train $common -j 1 -o a1 c.targets
    cart-train $common -j 2 -o a2 c.targets
    cart-train $common --recompute -o a3 c.targets
    cart-train $common --no-pack -o a4 c.targets
    cart-train $common --max-tokens 70 -o a5 c.targets
    cart-train $common --save-every 3 -o a6 c.targets
    cat c.targets | cart-train $common > a7
    cart-train $common --metrics m.metrics -o a8 - < c.targets
    CART_CPU=generic cart-train $common -o a9 c.targets
    for f in a?; do
        cmp want.safetensors $f
    done
    cart-view --check m.metrics
    [ "$(ls a6*)" = a6 ]
}

@test "each processor path gives the same bytes" {
    for path in avx2 avx512; do
        CART_CPU=$path cart-train --version > /dev/null 2>&1 || skip "machine: no $path"
        CART_CPU=$path cart-train -q -p 48 --steps 10 -o b c.targets
        cmp want.safetensors b
    done
}

@test "the sink stays, the other rows move" {
    cart_need_tool jq
    cart-init -p 48 -o start.safetensors c.tokens
    for f in start want; do
        cart-view --data $f.safetensors | jq -c 'select(.name) | select(.name | endswith("sink"))' > $f.sinks
        cart-view --data $f.safetensors | jq -c 'select(.name) | select(.name | endswith(".k"))' > $f.rows
    done
    [ "$(wc -l < want.sinks)" -eq 8 ]
    cmp start.sinks want.sinks
    cart_must_fail 1 cmp -s start.rows want.rows
}

@test "killed at any step and resumed: the bytes of a run that never stopped" {
    cut=
    for moment in r.jsonl.part r.part r.optimizer.safetensors r.optimizer.safetensors r; do
        rm -f r*
        cart-train -q -p 48 --steps 10 --save-every 1 --metrics r.jsonl -o r c.targets &
        pid=$!
        # The file may be gone again before it is seen here: then the run has ended, and there is nothing to resume.
        until [ -e $moment ] || ! kill -0 $pid 2> /dev/null; do :; done
        kill -9 $pid 2> /dev/null || true
        wait $pid 2> /dev/null || true
        if [ -e r ]; then cmp want.safetensors r; else cut=1; fi
        cart-train -q -p 48 --steps 10 --save-every 4 --metrics r.jsonl --resume -o r c.targets 2> /dev/null
        cmp want.safetensors r
        sha256sum < r.jsonl >> sums
    done
    [ -n "$cut" ]
    [ "$(sort -u sums | wc -l)" -eq 1 ]
    [ "$(ls r*)" = "$(printf 'r\nr.jsonl')" ]
}

@test "TERM saves a state and ends by the signal; the run goes on from it" {
    cart-train -q -p 48 --steps 300 -o whole c.targets
    cart-train -p 48 --steps 300 --save-every 1 -o r c.targets 2> words &
    pid=$!
    until [ -e r.optimizer.safetensors ] || ! kill -0 $pid 2> /dev/null; do :; done
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    cart_equal 143 $status status
    grep -qE '^cart-train: r.optimizer.safetensors holds the state after step [0-9]+: --resume goes on from it$' words
    [ -e r.part ]
    [ -e r.optimizer.safetensors ]
    [ ! -e r ]
    cart-view --check r.part
    step=$(sed -n 's/.* the state after step \([0-9]*\): .*/\1/p' words)
    cart-view --summary r.optimizer.safetensors > found
    cart_has found "made           step $step of 300; p 48; corpus "
    # A run with another option is another run.
    cart_must_fail 4 cart-train -q -p 48 --steps 300 --lr 0.1 --resume -o r c.targets 2> err
    cart_equal 'cart-train: r.optimizer.safetensors: it was begun with other inputs or options: lr: saved with 0.02, asked for 0.1; remove it to begin anew' \
        "$(cat err)"
    cart_must_fail 4 cart-train -q -p 40 --steps 300 --resume -o r c.targets
    # And another stream another.
    cart-selfstudy -q -n 24 --held-out 4 --max-a 20 --max-q 12 --chunk 32:64 --context chunk --seed 4 c.tokens |
        cart-teacher -q > other.targets
    cart_must_fail 4 cart-train -q -p 48 --steps 300 --resume -o r other.targets 2> err
    cart_has err 'begun with other inputs or options: seed: saved with 3, asked for 4; remove it'
    # Of the same HEAD, but other conversations.
    cart-view c.targets | jq -c 'if .n == 5 then .seed_type = "other" else . end' | cart-view -q --pack -o other.targets -
    cart_must_fail 4 cart-train -q -p 48 --steps 300 --resume -o r other.targets 2> err
    grep -qE '^cart-train: other.targets: another stream: its first [0-9]+ training conversations are not those of the run; remove r.optimizer.safetensors to begin anew$' err
    [ ! -e r ]
    # The same run goes on after the step it had reached, and ends where it would have ended.
    cart-train -v -p 48 --steps 300 --resume -o r c.targets 2> err
    grep -qE 'goes on after step [1-9][0-9]* of 300' err
    cmp whole r
    [ ! -e r.part ]
    [ ! -e r.optimizer.safetensors ]
}

@test "two at once on one file: the second says so and changes nothing" {
    mkfifo p
    cart-train -q -p 48 --steps 10 --save-every 1 --metrics m.jsonl -o r < p &
    pid=$!
    exec 9> p
    head -c $(($(wc -c < c.targets) * 3 / 4)) c.targets >&9
    until [ -e r.optimizer.safetensors ] || ! kill -0 $pid 2> /dev/null; do sleep 0.05; done
    for resume in '' --resume; do
        cart_must_fail 6 cart-train -q -p 48 --steps 2 $resume -o r c.targets 2> err
        cart_equal 'cart-train: r.part: another process is writing it' "$(cat err)"
        cart_must_fail 6 cart-train -q -p 48 --steps 2 --metrics m.jsonl -o s c.targets 2> err
        cart_equal 'cart-train: m.jsonl.part: another process is writing it' "$(cat err)"
    done
    [ ! -e s.part ]
    # Nor under another name.
    ln -s r alias
    ln -s m.jsonl lines.jsonl
    cart_must_fail 6 cart-train -q -p 48 --steps 2 -o alias c.targets 2> err
    cart_equal 'cart-train: r.part: another process is writing it' "$(cat err)"
    cart_must_fail 6 cart-train -q -p 48 --steps 2 --metrics lines.jsonl -o s c.targets 2> err
    cart_equal 'cart-train: m.jsonl.part: another process is writing it' "$(cat err)"
    # A dry run writes nothing, so that it may look on.
    cart-train -p 48 --steps 10 --resume --dry-run --metrics m.jsonl -o r c.targets
    tail -c +$(($(wc -c < c.targets) * 3 / 4 + 1)) c.targets >&9
    exec 9>&-
    wait $pid
    cmp want.safetensors r
    [ "$(ls r* m*)" = "$(printf 'm.jsonl\nr')" ]
}

@test "names that the run keeps meanwhile are no inputs and no outputs" {
    cp want.safetensors r.part
    cp c.targets m.jsonl.part
    cart_must_fail 2 cart-train -q -p 48 --init r.part --steps 2 -o r c.targets 2> err
    cart_has err 'r.part: is the name of a file that this run keeps meanwhile'
    cart_must_fail 2 cart-train -q -p 48 --steps 2 --metrics m.jsonl -o r m.jsonl.part
    cart_must_fail 2 cart-train -q -p 48 --steps 2 --metrics m.jsonl -o m.jsonl.part c.targets
    cart_must_fail 2 cart-train -q -p 48 --steps 2 --metrics m.jsonl -o r < m.jsonl.part
    cmp want.safetensors r.part
    cmp c.targets m.jsonl.part
}

@test "what is not of an earlier run is not overwritten, nor a link removed" {
    echo notes > notes
    for part in n.part m.part m.jsonl.part; do
        for content in notes want.safetensors c.targets; do
            cp $content $part
            metrics=m.jsonl
            [ $part != m.part ] || metrics=m
            cart_must_fail 2 cart-train -q -p 48 --steps 2 --metrics $metrics -o n c.targets 2> err
            cart_has err "cart-train: $part: expected the"
            cart_has err 'or no file, found something else'
            cmp $content $part
        done
        rm $part
    done
    for name in n.part n.optimizer.safetensors m.part; do
        ln -s notes $name
        cart_must_fail 2 cart-train -q -p 48 --steps 2 --metrics m -o n c.targets 2> err
        cart_equal "cart-train: $name: expected a regular file or none, found a symbolic link" "$(cat err)"
        cart_equal notes "$(readlink $name)"
        rm $name
    done
    cart_equal notes "$(cat notes)"
    [ ! -e n ]
}

@test "however early a run was killed, its metrics do not stop the next one" {
    for metrics in k.jsonl k.metrics; do
        cart-train -q -p 48 --steps 1 --metrics $metrics -o k c.targets
        mv $metrics whole
        for n in 1 4 8 12 16 20 40 100 300; do
            head -c $n whole > $metrics.part
            cart-train -q -p 48 --steps 1 --metrics $metrics -o k c.targets
            cmp whole $metrics
            [ ! -e $metrics.part ]
        done
    done
    # Nor does the beginning of a line of another kind pass for one.
    echo '{"conv' > k.jsonl.part
    cart_must_fail 2 cart-train -q -p 48 --steps 1 --metrics k.jsonl -o k c.targets 2> err
    cart_has err 'or no file, found something else'
    cart_equal '{"conv' "$(cat k.jsonl.part)"
    rm k.jsonl.part
}

@test "a stopped run leaves its state, nothing half" {
    head -c $(($(wc -c < c.targets) * 3 / 4)) c.targets > cut
    cart_must_fail 3 cart-train -q -p 48 --steps 10 --metrics m.jsonl -o r cut
    cart_equal 'r.optimizer.safetensors r.part m*' "$(echo r* m*)" left
    cart-view --check r.part
    # What fails before the first step leaves nothing at all.
    cart_must_fail 2 cart-train -q -p 500 --steps 10 --metrics m.jsonl -o n c.targets
    cart_equal 'n* m*' "$(echo n* m*)" left
    cart-train -q -p 48 --steps 10 --metrics m.jsonl --resume -o r c.targets
    cmp want.safetensors r
    # A link to nothing is not no state.
    ln -s nowhere l.optimizer.safetensors
    cart_must_fail 2 cart-train -q -p 48 --steps 10 --resume -o l c.targets 2> err
    cart_has err l.optimizer.safetensors
    cart_must_fail 2 cart-train -q -p 48 --steps 10 -o l c.targets
}

@test "metrics that cannot be written: no group is trained twice on going on" {
    cart-selfstudy -q -n 24 --held-out 0 --max-a 20 --max-q 12 --chunk 32:64 --context chunk c.tokens |
        cart-teacher -q > h0.targets
    cart-train -q -p 48 --steps 6 --metrics w.jsonl -o w h0.targets
    ln -s /dev/full full.jsonl
    cart_must_fail 5 cart-train -q -p 48 --steps 6 --metrics full.jsonl -o r h0.targets 2> err
    cart_has err full.jsonl
    [ -e r.optimizer.safetensors ]
    cart-train -q -p 48 --steps 6 --metrics r.jsonl --resume -o r h0.targets
    cmp w r
    cmp w.jsonl r.jsonl
}

@test "other kernels leave their mark, and no run goes on with others than it began with" {
    cart_need_tool jq
    cart-train -q -p 48 --steps 2 --kernels blas --draft-ref -o b c.targets
    jq() { command jq -r "$@"; }
    cart-view b | jq 'select(.metadata) | .metadata["cart.history"]' > history
    cart_equal '["blas",true]' "$(jq -c 'last.options | [.kernels, .draft_ref]' history)"
    cart-view want.safetensors | jq 'select(.metadata) | .metadata["cart.history"]' > history
    cart_equal '[null,null]' "$(jq -c 'last.options | [.kernels, .draft_ref]' history)"
    size=$(wc -c < c.targets)
    head -c $((size * 3 / 4)) c.targets | cart_must_fail 3 cart-train -q -p 48 --steps 10 -o r
    cart_must_fail 4 cart-train -q -p 48 --steps 10 --kernels blas --resume -o r c.targets 2> err
    cart_has err 'kernels: saved with'
}

@test "bf16 is a class of its own: marked, the same bits on every CPU, not mixed by --resume" {
    cart_need_tool jq
    for cpu in "" generic avx2; do
        CART_CPU=$cpu cart-train -q -p 48 --steps 3 --precision bf16 -j 2 -o "b$cpu" c.targets || return 1
    done
    cmp b bgeneric
    cmp b bavx2
    cart-train -q -p 48 --steps 3 -o f c.targets
    cart_must_fail 1 cmp -s b f
    cart_equal bf16 "$(cart-view b | jq -r 'select(.metadata) | .metadata["cart.precision"]')"
    cart-view b | jq -r 'select(.metadata) | .metadata["cart.history"]' > history
    cart_equal '"bf16"' "$(jq -c 'last.options.precision' history)"
    size=$(wc -c < c.targets)
    head -c $((size * 3 / 4)) c.targets | cart_must_fail 3 cart-train -q -p 48 --steps 10 -o r
    cart_must_fail 4 cart-train -q -p 48 --steps 10 --precision bf16 --resume -o r c.targets 2> err
    cart_has err 'precision: saved with'
}

@test "--epochs on a shard goes over the shard's conversations" {
    cart-selfstudy -q -n 24 --held-out 4 --max-a 20 --max-q 12 --chunk 32:64 --context chunk --shard 2/4 c.tokens |
        cart-teacher -q > shard.targets
    cart-train --accum 1 -p 48 --dry-run shard.targets 2> err
    cart_has err '7 training and 0 held-out conversations, 7 steps of 1'
}

@test "an evaluation that failed after its step is made up for" {
    cart_need_tool jq
    cart-train -q -p 48 --steps 10 --eval-every 1 --metrics w.jsonl -o w c.targets
    head -c $(($(wc -c < c.targets) * 3 / 4)) c.targets > cut
    cart_must_fail 3 cart-train -q -p 48 --steps 10 --eval-every 1 -o r cut
    # As the state would be without the evaluation.
    cart-view --data r.optimizer.safetensors |
        jq -c 'if .name == "metrics" then .data |= (implode | split("\n")[:-2] | join("\n") + "\n" | explode) |
            .shape = [.data | length] else . end' > state.jsonl
    cart-view -q --pack -o edited state.jsonl
    cart_must_fail 1 cmp -s edited r.optimizer.safetensors
    # The digests of the tensor and of the metadata no longer hold, and each is told.
    cart_must_fail 3 cart-view --check edited 2> err
    cart_has err 'edited: tensor metrics: expected the digest '
    for part in metrics metadata; do
        read -r old new < <(sed -n 's/.*expected the digest \([0-9a-f]*\), found \([0-9a-f]*\):.*/\1 \2/p' err)
        sed -i "s/$old/$new/" state.jsonl
        cart-view -q --pack -o edited state.jsonl
        cart-view --check edited 2> err || [ $part = metrics ]
    done
    mv edited r.optimizer.safetensors
    cart-train -q -p 48 --steps 10 --eval-every 1 --metrics r.jsonl --resume -o r c.targets
    cmp w.jsonl r.jsonl
    cmp w r
}

@test "devices are written, not replaced, and have no files beside them" {
    mkfifo m.jsonl
    cart-train -q -p 48 --steps 2 --metrics m.jsonl -o r c.targets &
    wc -l < m.jsonl > n
    wait $!
    [ "$(cat n)" -eq 4 ]
    [ -p m.jsonl ]
    ln -s /dev/null null
    cart-train -q -p 48 --steps 2 --metrics null -o null c.targets
    [ -L null ]
    [ -c /dev/null ]
    cart_must_fail 2 cart-train -q -p 48 --steps 2 --save-every 1 -o null c.targets
    cart_must_fail 2 cart-train -q -p 48 --steps 2 --metrics - c.targets > out
    [ "$(echo null* m.jsonl*)" = 'null m.jsonl' ]
}

@test "TERM while a pipe has nothing to say: the state is saved all the same" {
    mkfifo p
    cart-train -q -p 48 --steps 10 --metrics m.jsonl -o r < p &
    pid=$!
    exec 9> p
    size=$(wc -c < c.targets)
    head -c $((size * 3 / 4)) c.targets >&9
    # Once it has made a step there is a state to save; it is asleep when it waits for more.
    until grep -q train m.jsonl.part 2> /dev/null || ! kill -0 $pid 2> /dev/null; do sleep 0.1; done
    for _ in $(seq 100); do
        sleep 0.1
        [ "$(cut -d ' ' -f 3 /proc/$pid/stat)" = S ] && break
    done
    kill -TERM $pid
    stopped=
    for _ in $(seq 100); do
        kill -0 $pid 2> /dev/null || stopped=1
        [ -z "$stopped" ] || break
        sleep 0.1
    done
    exec 9>&-
    [ -n "$stopped" ]
    status=0
    wait $pid || status=$?
    cart_equal 143 $status status
    [ -e r.optimizer.safetensors ]
    cart-train -q -p 48 --steps 10 --resume -o r c.targets
    cmp want.safetensors r
}

@test "a run that knew the whole stream goes on with no longer one" {
    cart_need_tool jq
    cart-view c.targets | jq -c 'select(.record != "targ" or .n < 26)' | cart-view -q --pack -o short.targets -
    cart-train -q -p 48 --steps 300 -o w short.targets
    cart-train -q -p 48 --steps 300 --save-every 1 --metrics r.jsonl -o r short.targets &
    pid=$!
    until [ "$(grep -c train r.jsonl.part 2> /dev/null)" -gt 12 ] 2> /dev/null || ! kill -0 $pid 2> /dev/null; do :; done
    kill -9 $pid
    wait $pid 2> /dev/null || true
    cart_must_fail 4 cart-train -q -p 48 --steps 300 --resume -o r c.targets 2> err
    cart_has err 'c.targets: another stream: it was whole with 22 training conversations, found 24; remove r.optimizer.safetensors to begin anew'
    cart-train -q -p 48 --steps 300 --resume -o r short.targets
    cmp w r
}

@test "a stream that breaks off leaves a state, not a cartridge" {
    size=$(wc -c < c.targets)
    head -c $((size * 3 / 4)) c.targets | cart_must_fail 3 cart-train -q -p 48 --steps 10 -o r 2> err
    cart_has err 'without END'
    [ ! -e r ]
    [ -e r.optimizer.safetensors ]
    cat c.targets | cart-train -q -p 48 --steps 10 --resume -o r
    cmp want.safetensors r
}

@test "cut at any byte: status 3 and no cartridge" {
    size=$(wc -c < c.targets)
    for n in 0 5 9 100 1000 $((size / 3)) $((size - 40)) $((size - 1)); do
        head -c $n c.targets > cut
        cart_must_fail 3 cart-train -q -p 48 --steps 2 -o no cut
        [ ! -e no ]
        # What was learnt before the cut is kept, and not thrown away unasked.
        if [ -e no.optimizer.safetensors ]; then
            cart_must_fail 2 cart-train -q -p 48 --steps 2 -o no cut
            rm no.*
        fi
    done
}

@test "foreign and mismatched input" {
    cart_must_fail 3 cart-train -q -o no c.tokens 2> err
    cart_has err 'expected a targets stream'
    cart_must_fail 3 cart-train -q -o no c.txt
    cart_must_fail 5 cart-train -q -o no no-such-file
    cart_must_fail 2 cart-train -q -p 500 -o no c.targets
    cart_tiny qwen2
    cart_must_fail 4 cart-train -q -p 48 -o no c.targets
    cart_tiny llama_tied.q8_0
    cart_must_fail 4 cart-train -q -p 48 -o no c.targets
    cart-train -q -p 48 --steps 2 --allow-other-weights -o yes c.targets
    [ ! -e no ]
    [ -e yes ]
}

@test "an edited stream may hold out nothing or everything" {
    cart_need_tool jq
    cart-view c.targets | jq -c 'if .record == "targ" then .split = "held-out" else . end' |
        tee all.jsonl | cart-view --pack -o wrong.targets -
    # HEAD says which are held out, and is believed by nobody against the records.
    for program in cart-train cart-eval 'cart-view --check'; do
        cart_must_fail 3 $program wrong.targets 2> err
        cart_has err 'split: expected held-out where n is below the held_out of HEAD'
    done
    jq -c 'if .record == "head" then .held_out = .conversations else . end' all.jsonl | cart-view --pack -o all.targets -
    cart_must_fail 3 cart-train -q -p 48 --steps 2 -o no all.targets 2> err
    cart_has err 'no conversation to train on'
    cart-view c.targets | jq -c 'if .record == "targ" then .split = "train" elif .record == "head" then .held_out = 0
        else . end' | cart-view --pack -o none.targets -
    cart-train -p 48 --steps 2 -o yes none.targets 2> err
    cart_must_fail 1 grep -q held-out err
}

@test "a conversation that does not fit behind the rows is told as it is read" {
    cart_need_tool jq
    longest=$(cart-view c.targets | jq -s 'map(select(.record == "targ")) | max_by(.rows[-1]) | [.n, .rows[-1]] | @tsv' -r)
    read -r n tokens <<< "$longest"
    cart-train -q -p $((512 - tokens)) --steps 1 --init random -o fits c.targets
    cart_must_fail 2 cart-train -q -p $((513 - tokens)) --steps 100 --init random -o no c.targets 2> err
    cart_has err "c.targets: conversation $n: p $((513 - tokens)) and $tokens tokens exceed the model's context of 512: a lower p"
    [ ! -e no ]
}

@test "more steps than any run makes are refused, and the spool is of what is there" {
    cart_need_tool jq
    cart-view c.targets > c.jsonl
    jq -c 'if .record == "head" then .conversations = 9223372036854775000 else . end' c.jsonl | cart-view -q --pack -o m.targets -
    cart_must_fail 2 cart-train -q -p 48 --epochs 1000000 -o no m.targets 2> err
    cart_has err 'expected at most 1000000000 steps of them, found '
    # A stream that does not say how many it has is read whole before.
    jq -c 'if .record == "head" then del(.conversations, .held_out) else . end' c.jsonl | cart-view -q --pack -o n.targets -
    for f in c n; do
        cart-train --dry-run -p 48 $f.targets 2>&1 | sed -n 's/.*spool \([0-9.]*\) MiB.*/\1/p'
    done > spool
    cart_equal "$(sed -n 1p spool)" "$(sed -n 2p spool)" spool
}

@test "too few descriptors are told before the work, and nothing is published" {
    local n done=0
    for n in $(seq 6 2 26); do
        rm -f y* m.jsonl*
        if (ulimit -n "$n" && exec cart-train -q -p 48 --steps 2 --metrics m.jsonl -o y c.targets) 2> err < /dev/null; then
            done=$((done + 1))
            [ -s y ] && [ -s m.jsonl ]
        else
            grep 'Too many open files\|Error 24' err # the latter by what loads the program
            cart_must_fail 1 grep 'syncing' err
            cart_equal 'm.jsonl* y*' "$(echo m.jsonl* y*)"
        fi
    done
    [ $done -gt 0 ] && [ $done -lt 11 ]
}

@test "a full disk is reported" {
    cart_must_fail 5 cart-train -q -p 48 --steps 2 -o /dev/full c.targets
    cart_must_fail 5 cart-train -q -p 48 --steps 2 --metrics /dev/full/no -o no c.targets
    [ ! -e no ]
}

# catches PID: whether TERM is caught there.
catches() { (($(sed -n 's/^SigCgt:[[:blank:]]*/0x/p' "/proc/$1/status") >> 14 & 1)); }

@test "a signal is caught only where something is kept: a dry run ends at once" {
    mkfifo p
    while read -r expected opts; do
        # shellcheck disable=SC2086
        cart-train -p 48 $opts < p > /dev/null 2> err 9>&- &
        pid=$!
        exec 9> p
        until grep -q llama_tied /proc/$pid/maps; do kill -0 $pid && sleep 0.05; done
        for _ in $(seq 20); do
            if [ $expected = yes ] && catches $pid; then break; fi
            sleep 0.05
        done
        found=no
        ! catches $pid || found=yes
        kill -TERM $pid
        exec 9>&-
        cart_must_fail 143 wait $pid
        cart_equal $expected $found "$opts"
        [ -z "$(ls r* m.jsonl* 2> /dev/null)" ]
    done <<- 'END'
	no --dry-run -o r
	no --dry-run --metrics m.jsonl
	no
	no --metrics /dev/null
	yes -o r
	yes --metrics m.jsonl
	END
}

@test "what took the name of FILE.part meanwhile stays" {
    mkfifo p
    cart-train -q -p 48 --steps 2 --save-every 0 -o r < p 9>&- &
    pid=$!
    exec 9> p
    until [ -e r.part ]; do kill -0 $pid && sleep 0.05; done
    mv r.part moved
    echo other > r.part
    cat c.targets >&9
    exec 9>&-
    wait $pid
    cart-view --check r
    cart_equal other "$(cat r.part)"
}

@test "a dry run says what it takes and writes nothing" {
    cart-train --dry-run -p 48 --steps 100 --metrics no.jsonl -o no c.targets 2> err
    cart_has err 'memory beside the model'
    cart_has err 'time: about'
    [ -z "$(ls no* 2> /dev/null)" ]
}

@test "epochs set the steps; draft-ref embeds the corpus" {
    cart_need_tool jq
    cart-train -q -p 48 --epochs 2 --accum 5 --draft-ref --metrics m.jsonl -o e c.targets
    n=$(cart-view c.targets | jq -s '.[0].conversations - .[0].held_out')
    cart_equal $(((2 * n + 4) / 5)) "$(jq -s 'map(.step) | max' m.jsonl)" steps
    cart-view --data e | jq -c 'select(.name == "draft_reference") | .data // .values' > draft
    cart-view c.tokens | jq -c 'select(.record == "doc") | .tokens' > tokens
    cmp draft tokens
}

@test "rows that are all frozen leave nothing to train" {
    for p in 1 48; do
        cart_must_fail 2 cart-train -q --init random -p $p --frozen $p --steps 2 -o x c.targets 2> err
        cart_has err "--frozen $p: expected fewer than the $p row"
    done
    cart-train -q --init random -p 2 --frozen 1 --steps 1 -o x c.targets
}

# changed STATUS HOW INPUT COMMAND...: HOW is done to m.gguf once COMMAND has mapped it and before it reads INPUT.
changed() {
    local status=$1 how=$2 input=$3 pid
    shift 3
    cp "$CART_MODEL" m.gguf
    rm -f in
    mkfifo in
    CART_MODEL=$PWD/m.gguf "$@" < in > made 2> err 8>&- &
    pid=$!
    exec 8> in
    until grep -q m.gguf /proc/$pid/maps; do kill -0 "$pid" && sleep 0.05; done
    $how
    cat "$input" >&8 || true # who stops early closes the pipe
    exec 8>&-
    wait "$pid" || [ $? = "$status" ]
    [ "$status" = 0 ] || { [ ! -s made ] && grep -q '\(m.gguf\|k.st\): changed while it was used' err; }
}

in_place() { printf '\1' | dd of=m.gguf bs=1 seek=$(($(wc -c < m.gguf) - 5)) conv=notrunc 2> /dev/null; }
elsewhere() { mv m.gguf away && printf '\1' | dd of=away bs=1 seek=$(($(wc -c < away) - 5)) conv=notrunc 2> /dev/null; }
# The weights, and the time set back: what is left to see is the weights.
in_place_unseen() {
    touch -r m.gguf then
    head -c $(($(wc -c < m.gguf) / 2)) /dev/zero | dd of=m.gguf bs=64K seek=$(($(wc -c < m.gguf) / 2)) oflag=seek_bytes conv=notrunc
    touch -r then m.gguf
} 2> /dev/null
# Weights of no number: what fails of them is no fault of the input.
no_numbers() {
    head -c $(($(wc -c < "$1") / 2)) /dev/zero | tr '\0' '\377' | dd of="$1" bs=64K seek=$(($(wc -c < "$1") / 2)) oflag=seek_bytes conv=notrunc
} 2> /dev/null
no_weights() { no_numbers m.gguf; }
no_rows() { no_numbers k.st; }
cartridge() { printf '\1' | dd of=k.st bs=1 seek=$(($(wc -c < k.st) - 5)) conv=notrunc 2> /dev/null; }
in_name_only() { chmod 600 m.gguf && ln m.gguf other.gguf; }
by_renaming() { cp m.gguf n.gguf && printf x >> n.gguf && mv n.gguf m.gguf; }

@test "what was made with a model that was changed meanwhile is not kept" {
    changed 6 in_place c.targets cart-train -p 48 --steps 2 -o x
    changed 6 in_place c.targets cart-train -p 48 --steps 2
    changed 6 in_place c.targets cart-train -p 48 --steps 2 --save-every 1 -o x
    changed 6 in_place c.conv cart-teacher -o x
    changed 6 in_place c.tokens cart-selfstudy -n 1 --chunk 8:16 --max-q 8 --max-a 8 -o x
    changed 6 in_place c.targets cart-eval -o x
    changed 6 elsewhere c.targets cart-eval -o x
    changed 6 in_place c.tokens cart-init -p 16 -o x
    changed 6 in_place c.tokens cart-equiv -p 16
    echo word > text
    changed 6 in_place text cart-tokenize -o x
    changed 6 in_place text cart-ask --max-tokens 2
    changed 6 in_place_unseen c.tokens cart-init -p 16 -o x
    changed 6 no_weights c.targets cart-train -p 48 --steps 2 -o x
    changed 6 no_weights c.conv cart-teacher -o x
    changed 6 no_weights c.tokens cart-selfstudy -n 1 --chunk 8:16 --max-q 8 --max-a 8 -o x
    changed 6 no_weights c.targets cart-eval -o x
    changed 6 no_weights c.tokens cart-init -p 16 -o x
    changed 6 no_weights c.tokens cart-equiv -p 16
    changed 6 no_weights text cart-ask --max-tokens 2
    local command
    for command in 'cart-eval -c k.st -o x' 'cart-ask -c k.st --max-tokens 2'; do
        cart-train -q -p 48 --steps 1 -o k.st c.targets
        changed 6 cartridge "$([ "${command#cart-ask}" = "$command" ] && echo c.targets || echo text)" $command
        cart-train -q -p 48 --steps 1 -o k.st c.targets
        changed 6 no_rows "$([ "${command#cart-ask}" = "$command" ] && echo c.targets || echo text)" $command
    done
    [ -z "$(ls x* 2> /dev/null)" ]
    changed 0 in_name_only c.targets cart-train -q -p 48 --steps 2 -o x
    changed 0 by_renaming c.targets cart-train -q -p 48 --steps 2 -o x
    changed 0 true c.targets cart-train -q -p 48 --steps 2 -o y
    cmp x y
}

@test "targets of more than one whole are refused" {
    cart-view c.targets > c.jsonl
    # Two entries of 0.55 each are more than one whole.
    edit='if .record == "targ" then .logprobs[.offsets[0]:.offsets[1]] |= (length as $n | [range($n) | $lp]) | .entropy[0] = 0 else . end'
    jq -e -s 'map(select(.record == "targ") | .offsets[1]) | min >= 2' c.jsonl
    jq -c --argjson lp -0.6 "$edit" c.jsonl | cart-view -q --pack -o bad.targets -
    cart_must_fail 3 cart-view --check bad.targets 2> err
    cart_has err 'row 0: logprobs: probabilities of more than 1 together'
    cart_must_fail 3 cart-train -q -p 48 --steps 2 -o x bad.targets
    jq -c --argjson lp -20 "$edit" c.jsonl | cart-view -q --pack -o good.targets -
    cart-view --check good.targets
    jq -c 'if .record == "targ" then .entropy[0] = 99 else . end' c.jsonl | cart-view -q --pack -o bad.targets -
    cart_must_fail 3 cart-eval bad.targets 2> err
    cart_has err "row 0: entropy: expected that of the row's entries"
}

@test "targets whose n does not rise are refused" {
    cart-view c.targets > c.jsonl
    jq -c --slurpfile all c.jsonl '[$all[] | select(.record == "targ")] as $t |
        if . == $t[-1] then $t[-2] else . end' c.jsonl > bad.jsonl
    cart-view -q --pack -o bad.targets bad.jsonl
    cart_must_fail 3 cart-train -q -p 48 --steps 2 -o r bad.targets 2> err
    cart_has err 'follows'
    cart_has err 'n: expected more than that of the conversation before'
    cart_must_fail 3 cart-eval -q bad.targets 2> err
    cart_has err 'follows'
    [ ! -e r ]
}
