#!/usr/bin/env bats
# cart-eval: the table, recall, JSON, and how it fails.
load ../helper/common
load ../helper/study

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    cart_tiny llama_tied
    cart_study_streams
    cart-init -p 48 -o start.safetensors c.tokens
    cart-init -p 48 --init corpus -o opening.safetensors c.tokens
    cart-train -q -p 48 --steps 60 -o trained.safetensors c.targets
}

setup() {
    cart_setup
    cart_tiny llama_tied
    ln -s "$BATS_FILE_TMPDIR"/c.* "$BATS_FILE_TMPDIR"/*.safetensors .
    cat > q.jsonl <<'JSON'
{"question": "What is the base made of?", "answer": "copper", "wrong": ["steel", "tin"], "quote": "has a copper base", "path": "c.txt"}

{"question": "Where was it first made?", "answer": "Hallam", "stem": "In the town of", "wrong": ["Bern"], "quote": "the town of Hallam"}
{"question": "Who made it?", "answer": "Ada Brook", "at": 300}
{"question": "Which colour?", "answer": "Red", "wrong": ["Blue"], "quote": "it is red"}
JSON
}

arm() {
    jq -r --arg n "$1" ".arms[] | select(.name == \$n) | $2" out.json
}

@test "help, version and the manual agree" {
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-eval.1")" "$(cart_help_usage cart-eval)" synopsis
    cart-eval --version | grep -q '^cart-eval '
    cart_must_fail 2 cart-eval --no-such-option
    cart_must_fail 2 cart-eval c.targets c.targets
}

@test "every student is in the table, with rows and sizes" {
    cart_need_tool jq
    cart-eval -c trained.safetensors -c start.safetensors --json c.targets > out.json
    cart_equal 'bare,whole text,text 48,untrained,trained.safetensors,start.safetensors' \
        "$(jq -r '[.arms[].name] | join(",")' out.json)" students
    cart_equal 0 "$(arm bare .rows)" rows
    cart_equal 48 "$(arm trained.safetensors .rows)" rows
    cart_equal $((48 * 4 * 2 * 2 * 16 * 4)) "$(arm trained.safetensors .bytes)" bytes
    cart_equal true "$(jq .held_out out.json)" held_out
    # An untrained cartridge given as a file is the student that the recipe makes again.
    cart_equal "$(arm untrained .kl)" "$(arm start.safetensors .kl)" KL
    # On what it was trained on, the trained one is nearer to the teacher than what it began as, and than nothing.
    cart-view c.targets | jq -c 'if .record == "targ" then .split = "train" elif .record == "head" then .held_out = 0
        else . end' | cart-view --pack -o all.targets -
    cart-eval -c trained.safetensors --json all.targets > out.json
    cart_equal false "$(jq .held_out out.json)" held_out
    jq -e '[.arms[] | {(.name): .kl}] | add | .["trained.safetensors"] < .untrained and .["trained.safetensors"] < .bare' out.json
    jq -e '.arms[] | select(.name == "trained.safetensors") | .to_bare.kl | .[1] <= .[0] and .[0] <= .[2] and .[0] < 0' out.json
}

@test "rows of the opening are the text cut to them" {
    cart_need_tool jq
    cart-eval -c opening.safetensors --json --questions q.jsonl c.targets > out.json
    cart_equal "$(arm 'text 48' '.kl, .ce, .top1, .recall.answer')" \
        "$(arm opening.safetensors '.kl, .ce, .top1, .recall.answer')" numbers
}

@test "recall counts what can be judged and where it lies" {
    cart_need_tool jq
    cart-eval -c trained.safetensors --json --questions q.jsonl c.targets > out.json
    cart_equal '4 3 1 2' "$(arm bare '"\(.recall.questions) \(.recall.judged) \(.recall_within.questions) \(.recall_beyond.questions)"')" counts
    jq -e 'all(.arms[]; .recall.answer < 0)' out.json
    cart-eval -c trained.safetensors --questions q.jsonl c.targets > table
    cart_has table '4 questions: 1 within the first 48 tokens, 2 beyond, 1 with a quote that the corpus does not hold'
    cart_has table 'questions: the corpus does not hold the quote of 1: line 5'
    # The same numbers as in the table: shares for its per cent, null for its dash.
    jq -e 'all(.arms[]; .recall.right * 3 | . == floor and . >= 0 and . <= 3)' out.json
    printf '%s\n' '{"question": "Who made it?", "answer": "Ada Brook", "at": 300}' \
        '{"question": "Where?", "answer": "Hallam", "wrong": ["Bern"]}' > bare.jsonl
    cart-eval -c trained.safetensors --json --questions bare.jsonl c.targets > bare.json
    jq -e 'all(.arms[]; .recall_within == {questions: 0, judged: 0, right: null, answer: null})' bare.json
    jq -e 'all(.arms[]; .recall_beyond | .questions == 1 and .judged == 0 and .right == null and .answer < 0)' bare.json
    cart-eval -c trained.safetensors --questions bare.jsonl c.targets > table
    diff <(awk -F '|' '/%/ && NF == 4 { split($2, of, " "); printf "%.1f %.3f\n", of[1], of[2] }' table) \
        <(jq -r '.arms[].recall | "\(100 * .right) \(.answer)"' bare.json | awk '{ printf "%.1f %.3f\n", $1, $2 }')
    cart-eval -c trained.safetensors --questions q.jsonl c.targets > table
    # Every question is accounted for, and every interval that holds 0 says so.
    { cat q.jsonl; echo '{"question": "Which?", "answer": "This one"}'; } > more.jsonl
    cart-eval -c trained.safetensors --questions more.jsonl c.targets > five
    cart_has five '5 questions: 1 within the first 48 tokens, 2 beyond, 1 with no quote, 1 with a quote that'
    grep -oE '\[[^]]*\]( \(unsure\))?' five > intervals
    [ "$(wc -l < intervals)" -ge 6 ]
    grep -qF unsure intervals
    awk -F '[][, ]+' '{ if (($2 <= 0 && $3 >= 0) != /unsure/) exit 1 }' intervals
    cart_has table 'trained.safetensors - bare:'
    # Every column has a name of its own, and stands below it.
    cart_equal 1 "$(grep -cE '^student +rows +MiB +KL +CE +top-1 \| +right +log p \| +right +log p \| +right +log p$' table)" header
    grep -qE '^ +\| all questions +\| first 48 tokens +\| beyond them$' table
    cart_equal 1 "$(grep '|' table | sed 's/[^|]/x/g; s/x*$//' | sort -u | wc -l)" columns
    cart_has table 'KL: distance to the teacher'
    cart_has table '3 questions with wrong answers are few: right is known to within about 50 points'
    for _ in $(seq 50); do sed '/Red/d; /"at"/d; /^$/d' q.jsonl; done > many.jsonl
    cart-eval --questions many.jsonl c.targets > table
    cart_must_fail 1 grep -q 'are few' table
}

@test "a document of JSON Lines is named with or without its line" {
    cart_need_tool jq
    cart-view c.targets | sed 's/"path": *"[^"]*c\.txt"/"path":"docs\/d.jsonl:12"/' | cart-view --pack -o lines.targets -
    for path in d.jsonl docs/d.jsonl d.jsonl:12 docs/d.jsonl:12; do
        jq -nc --arg p "$path" '{question: "A", answer: "B", quote: "has a copper base", path: $p}'
    done > q.jsonl
    cart-eval -c trained.safetensors --json --questions q.jsonl lines.targets > out.json
    cart_equal 4 "$(arm bare .recall_within.questions)" 'questions with a place'
    for path in .jsonl d.jsonl:1 d.jsonl:2 s/d.jsonl 12; do
        jq -nc --arg p "$path" '{question: "A", answer: "B", quote: "has a copper base", path: $p}'
    done > q.jsonl
    cart-eval -c trained.safetensors --questions q.jsonl lines.targets > table
    cart_has table '5 with a quote that the corpus does not hold'
}

@test "the same report whatever threads and processor" {
    cart-eval -c trained.safetensors --questions q.jsonl -j 1 c.targets > a
    cart-eval -c trained.safetensors --questions q.jsonl -j 2 - < c.targets > b
    CART_CPU=generic cart-eval -c trained.safetensors --questions q.jsonl -o c c.targets
    cmp a b
    cmp a c
}

@test "cut, foreign and mismatched input" {
    head -c 9000 c.targets > cut
    cart_must_fail 3 cart-eval cut > out
    [ ! -s out ]
    cart_must_fail 3 cart-eval c.tokens
    cart_must_fail 3 cart-eval -c c.tokens c.targets 2> err
    cart_has err 'expected a cartridge'
    cart_must_fail 3 cart-eval -c c.txt c.targets
    cart_must_fail 5 cart-eval -c no-such-file c.targets
    head -c 3000 trained.safetensors > short
    cart_must_fail 3 cart-eval -c short c.targets
    cart_tiny llama_tied.q8_0
    cart_must_fail 4 cart-eval c.targets
    cart-eval --allow-other-weights -c trained.safetensors c.targets > out 2> err
    cart_has err 'other weights'
}

@test "questions that make no sense are refused by line" {
    for bad in '{"question": "A"}' '[1]' '{"question": "A", "answer": ""}' '{"question": "A", "answer": "B", "wrong": "C"}' \
        '{"question": "A", "answer": "B", "wrong": [""]}' '{"question": "A", "answer": "B", "at": 99999}' 'no json' \
        '{"question": "A", "answer": "B", "wrong": ["C", "B"]}' '{"question": "A", "answer": "B", "wrong": ["C", "D", "C"]}' \
        '{"question": "A", "answer": "B", "stem": "So", "wrong": [" B"]}' '{"question": "A", "answer": "B", "qoute": "C"}'; do
        { echo '{"question": "A", "answer": "B"}'; echo "$bad"; } > bad.jsonl
        cart_must_fail 3 cart-eval --questions bad.jsonl c.targets 2> err
        cart_has err 'bad.jsonl: line 2'
    done
    cart_has err 'unknown key qoute'
    echo '{"question": "A", "answer": "B", "wrong": ["C", "B"]}' > bad.jsonl
    cart_must_fail 3 cart-eval --questions bad.jsonl c.targets 2> err
    cart_equal 'cart-eval: bad.jsonl: line 1: wrong[1]: expected another text than the answer, found the same' "$(cat err)"
    echo '{"question": "A", "answer": "B", "wrong": ["C", "D", "C"]}' > bad.jsonl
    cart_must_fail 3 cart-eval --questions bad.jsonl c.targets 2> err
    cart_equal 'cart-eval: bad.jsonl: line 1: wrong[2]: expected another text than wrong[0], found the same' "$(cat err)"
    # The first that was there before, and what it is the same as.
    echo '{"question": "A", "answer": "b", "wrong": ["d", "c", "c", "b", "d", "c"]}' > bad.jsonl
    cart_must_fail 3 cart-eval --questions bad.jsonl c.targets 2> err
    cart_equal 'cart-eval: bad.jsonl: line 1: wrong[2]: expected another text than wrong[1], found the same' "$(cat err)"
    echo '{"question": "A", "answer": "b", "wrong": ["c", "b"]}' > bad.jsonl
    cart_must_fail 3 cart-eval --questions bad.jsonl c.targets 2> err
    cart_equal 'cart-eval: bad.jsonl: line 1: wrong[1]: expected another text than the answer, found the same' "$(cat err)"
    # Many wrong answers take no longer than their number asks for: seconds of the processor, not minutes.
    { printf '{"question": "A", "answer": "b", "wrong": ["c"'; seq -f ', "%.0f"' 50000 | tr -d '\n'; echo ', "c"]}'; } > bad.jsonl
    cart_must_fail 3 bash -c 'ulimit -t 30; exec cart-eval --questions bad.jsonl c.targets' 2> err
    cart_equal 'cart-eval: bad.jsonl: line 1: wrong[50001]: expected another text than wrong[0], found the same' "$(cat err)"
    mkdir folder
    cart_must_fail 3 cart-eval --questions folder c.targets 2> err
    cart_equal 'cart-eval: folder: expected a file, found a directory' "$(cat err)"
    # One's own notes, a byte order mark and carriage returns are none of our business.
    printf '\xef\xbb\xbf{"question": "A", "answer": "B", "_id": 7}\r\n\r\n' > marked.jsonl
    printf '{"question": "A", "answer": "B"}\n' > plain.jsonl
    cart-eval --json --questions marked.jsonl c.targets > a
    cart-eval --json --questions plain.jsonl c.targets > b
    cmp a b
    : > empty.jsonl
    cart_must_fail 3 cart-eval --questions empty.jsonl c.targets
}

@test "what does not fit behind rows is left out, and said" {
    cart_need_tool jq
    cart-init -q -p 505 --init random -o long.safetensors c.tokens
    cart-init -q -p 40 --init random --seed 7 -o other.safetensors c.tokens
    printf '{"question": "%s", "answer": "x"}\n' "$(seq 400 | tr '\n' ' ')" >> q.jsonl
    cart-eval -c trained.safetensors -c long.safetensors -c other.safetensors --questions q.jsonl --json c.targets \
        > out.json 2> err
    cart_equal 'bare,whole text,text 48,text 40,untrained,untrained other.safetensors,trained.safetensors,other.safetensors' \
        "$(jq -r '[.arms[].name] | join(",")' out.json)" students
    cart_equal 4 "$(jq .questions out.json)" questions
    cart-eval -c trained.safetensors -c long.safetensors --questions q.jsonl c.targets > out
    cart_has out 'long.safetensors: left out: 505 rows and a conversation of'
    cart_has out 'questions: 1 left out, beyond the context of 512: line 6'
}

@test "first rows of another precision or other kernels are not compared with, and that is said" {
    cart_need_tool jq
    cart-init -q -p 48 --precision bf16 -o b.safetensors c.tokens
    cart-eval -c b.safetensors --json c.targets > out.json
    cart_equal 'bare,whole text,text 48,b.safetensors' "$(jq -r '[.arms[].name] | join(",")' out.json)" students
    cart-eval -c b.safetensors c.targets > out
    cart_has out 'untrained: left out for b.safetensors: its first rows: precision: expected f32, found bf16'
    # In its own precision it is what the recipe makes again, and no other stands for it.
    cart-eval --precision bf16 -c b.safetensors --json c.targets > out.json
    cart_equal "$(arm b.safetensors .kl)" "$(arm untrained .kl)" KL
    cart-eval -c start.safetensors -c b.safetensors c.targets > out
    cart_has out 'untrained: left out for b.safetensors'
    cart-init -q -p 48 --kernels blas -o k.safetensors c.tokens
    cart-eval -c k.safetensors c.targets > out
    cart_has out 'untrained: left out for k.safetensors: its first rows: kernels: expected exact, found blas'
}

@test "the first rows of a cartridge of another corpus are not made of this one" {
    cart_need_tool jq
    cart_study_text | tac > d.txt
    cart-tokenize -q -o d.tokens d.txt
    cart-init -q -p 48 -o d.safetensors d.tokens
    cart-eval -c d.safetensors -c start.safetensors --json c.targets > out.json 2> err
    cart_equal 'bare,whole text,text 48,untrained,d.safetensors,start.safetensors' \
        "$(jq -r '[.arms[].name] | join(",")' out.json)" students
    cart_equal "$(arm start.safetensors .kl)" "$(arm untrained .kl)" KL
    cart_has out.json "untrained: left out for d.safetensors: it was made of another corpus than the stream's"
    cart_has err "cart-eval: warning: 1 cartridge of another corpus than the stream's"
}

@test "the first rows of a cartridge of other weights or another profile are not made by this model" {
    cart_need_tool jq
    local weights
    weights=$(cart-view start.safetensors | jq -r '.metadata["cart.weights"] // empty')
    edit() {
        cart-view --data start.safetensors |
            jq -c "if .metadata then .metadata |= (del(.[\"cart.data\"], .[\"cart.sum\"]) | .[\"cart.$1\"] = \"$2\") else . end" |
            cart-view -q --pack -o "$1.safetensors" -
    }
    edit weights "$(tr 0-9a-f 1-9a-f0 <<< "$weights")"
    edit profile other
    for which in weights profile; do
        cart-eval --allow-other-weights -c $which.safetensors --json c.targets > out.json
        cart_equal "bare,whole text,text 48,$which.safetensors" "$(jq -r '[.arms[].name] | join(",")' out.json)" students
        # It does not stand for one that can be made again.
        cart-eval --allow-other-weights -c $which.safetensors -c start.safetensors --json c.targets > out.json
        cart_equal "bare,whole text,text 48,untrained,$which.safetensors,start.safetensors" \
            "$(jq -r '[.arms[].name] | join(",")' out.json)" students
        cart_equal "$(arm start.safetensors .kl)" "$(arm untrained .kl)" KL
        cp out.json $which.json
    done
    cart_has weights.json "untrained: left out for weights.safetensors: it was made by other weights than the model's"
    cart_has profile.json 'untrained: left out for profile.safetensors: it was made with another chat profile'
}

@test "cartridges that began as two files are two starts" {
    cart_need_tool jq
    head -n 2 c.txt > a.txt
    tail -n 2 c.txt > b.txt
    for which in a b; do cart-init -q -p 48 --init $which.txt -o $which.safetensors c.tokens; done
    cart-eval -c a.safetensors -c b.safetensors c.targets > out
    for which in a b; do
        cart_has out "untrained: left out for $which.safetensors: its first rows came from a file (text)"
    done
}

@test "rows so large that nothing finite comes of them" {
    cart_need_tool jq
    cart-view --data start.safetensors | jq -c 'if .name == "layers.0.v" then .data |= map(map(map(3e38)))
        elif .metadata then .metadata = {} else . end' | cart-view --pack -o huge.safetensors -
    for how in '' --json; do
        cart_must_fail 3 cart-eval $how -c huge.safetensors c.targets > out 2> err
        cart_has err 'huge.safetensors: conversation 0: the loss is not a finite number'
        [ ! -s out ]
    done
    cart_must_fail 3 cart-train -q -p 48 --init huge.safetensors --steps 2 -o no c.targets 2> err
    cart_has err 'held-out conversations: conversation 0: the loss is not a finite number'
    [ ! -e no ]
}

@test "what belongs to a fleet is not judged as one cartridge" {
    cart_need_tool jq
    cart-view c.targets | jq -c 'if .n == 2 then .parts = ["x", "y"] else . end' | cart-view -q --pack -o fleet.targets -
    cart_must_fail 3 cart-eval fleet.targets 2> err
    cart_has err 'fleet.targets: conversation 2: of a fleet, not of one cartridge'
}

@test "a full disk is reported" {
    cart_must_fail 5 sh -c 'cart-eval c.targets > /dev/full'
    cart_must_fail 5 cart-eval -o /dev/full c.targets
}

@test "a dry run says what it takes and judges nothing" {
    cart-eval --dry-run -c trained.safetensors --questions q.jsonl -o no c.targets > out 2> err
    [ ! -s out ]
    [ ! -e no ]
    grep -qE '^cart-eval: 5 students judged by 4 conversations and 4 questions: [0-9]+ tokens each; [0-9]+ tokens of' err
    grep -qE '^cart-eval: memory beside the model: about [0-9]+ MiB; disk: the report; time: about [0-9]+ s$' err
    cart_has err 'cart-eval: questions: the corpus does not hold the quote of 1: line 5'
    # Nor does it open what it would write to: a pipe that nobody reads.
    mkfifo pipe
    timeout 60 cart-eval --dry-run -o pipe c.targets
    # One of a thing is not many of it.
    head -n 1 q.jsonl > one.jsonl
    cart-eval --dry-run --questions one.jsonl c.targets 2> err
    cart_has err ' conversations and 1 question: '
    cart-eval --questions one.jsonl c.targets > out
    cart_has out '; 1 question'
    # Without a cartridge nothing divides the questions.
    cart_must_fail 1 grep -qE 'within the first|beyond' out
    cart_equal 1 "$(grep -c '| *right *log p$' out)" 'groups of columns'
    cart_must_fail 3 cart-eval --dry-run c.tokens
}
