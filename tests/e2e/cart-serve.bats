# cart-serve as its clients, its operator and strangers meet it. Real client libraries: make check-clients.
load ../helper/common
load ../helper/serve

setup() {
    cart_setup
    cart_need_tool curl jq
    cart_tiny qwen3
    SERVE_PID=
}

teardown() {
    serve_kill
}

HELLO='"messages":[{"role":"user","content":"hello"}],"temperature":0'

make_cartridges() {
    seq 1 60 | sed 's/$/ sheep in the rain/' > text.txt
    cart-tokenize -q text.txt > text.tokens
    cart-init -q -p 12 -o one.safetensors < text.tokens
    cart-init -q -p 20 --init corpus -o two.safetensors < text.tokens
}

content() { jq -r '.choices[0].message.content'; }
path_of() { case $1 in *'"messages"'*) echo /v1/chat/completions ;; *) echo /v1/completions ;; esac; }

@test "the synopsis is what -h prints" {
    cart_need_tool mandoc
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-serve.1")" "$(cart_help_usage cart-serve)"
}

@test "the manual names every error code" {
    # client_closed_request is for the log: who would read it has gone.
    cat "$CART_ROOT"/lib/serve/*.c | tr -s '\n ' '  ' |
        grep -oE '(cart_exchange_error|cart_exchange_error_with|cart_fault_set)\([^;"]*"[a-z_]+"( : "[a-z_]+")?' |
        grep -oE '"[a-z_]+"' | tr -d '"' | sort -u | grep -v client_closed > codes
    [ "$(wc -l < codes)" -ge 25 ]
    sed -n '/^.Sh ERROR ANSWERS/,/^.El/p' "$CART_ROOT/man/cart-serve.1" | grep -oE '[a-z]+_?[a-z_]+' | sort -u > named
    cart_equal '' "$(comm -23 codes named)"
}

@test "bad use is status 2, a file that is no cartridge 3, one of another model 4" {
    cart_must_fail 2 cart-serve --port 70000 2>err
    cart_must_fail 2 cart-serve operand 2>err
    cart_must_fail 2 cart-serve --port 0 -c nameless 2>err
    local name
    for name in a:b 'a b' a/ /a a//b $'a\tb' $'a\x7f' $'caf\xe9'; do
        cart_must_fail 2 cart-serve --port 0 --name "$name" 2>err
        cart_has err 'bytes of UTF-8'
    done
    cart_must_fail 2 cart-serve --port 0 --default nobody 2>err
    cart_has err '--default: no cartridge is named "nobody"'
    cart_must_fail 5 cart-serve --port 0 -c a=missing --default a 2>err
    cart_must_fail 1 grep -e --default err
    cart_must_fail 2 cart-serve --port 0 --draft 33 2>err
    cart_must_fail 2 cart-serve --no-tcp 2>err
    : > empty.keys
    cart_must_fail 2 cart-serve --port 0 --api-key-file empty.keys 2>err
    mkdir keys
    cart_must_fail 3 cart-serve --port 0 --api-key-file keys 2>err
    cart_has err 'keys: expected a file, found a directory'
    echo nonsense > bad.safetensors
    cart_must_fail 3 cart-serve --port 0 -c "x=bad.safetensors" 2>err
    cart_has err bad.safetensors
    make_cartridges
    cart_must_fail 2 cart-serve --port 0 -c a=one.safetensors -c b=two.safetensors -c a=two.safetensors 2>err
    cart_has err '-c a=two.safetensors: expected a name of its own, found it in -c a=one.safetensors'
    cart_tiny llama_tied
    cart_must_fail 4 cart-serve --port 0 -c x=one.safetensors 2>err
    cart_has err one.safetensors
}

@test "--dry-run counts more rows than there is memory for" {
    timeout 60 cart-serve --dry-run --kv 1099511627776 2>err
    # No row takes less than one number.
    [ "$(sed -n 's/.*memory beside the model: \([0-9]*\)\.[0-9] MiB at most.*/\1/p' err)" -ge $((4 << 20)) ]
    cart_must_fail 5 timeout 60 cart-serve --port 0 --kv 1099511627776 2>err
    cart_has err 'keys and values of'
}

@test "--dry-run says what it would take and listens on nothing" {
    make_cartridges
    cart-serve --dry-run --port 1 -c one=one.safetensors 2>err
    cart_has err '1 cartridge ('
    cart_has err 'MiB at most, as rows are used (less: --kv, --ctx)'
    # Rows that are copied count.
    cart-init -q -p 200 -o large.safetensors < text.tokens
    cart-serve --dry-run -c large=large.safetensors 2>err2
    local most='s/.*memory beside the model: \([0-9.]*\) MiB at most.*/\1/p'
    awk -v a="$(sed -n "$most" err)" -v b="$(sed -n "$most" err2)" 'BEGIN { exit !(b > a) }'
}

@test "a stream, joined, is the answer" {
    serve_start
    post /v1/chat/completions "{$HELLO,\"max_tokens\":12}" > whole
    post /v1/chat/completions "{$HELLO,\"max_tokens\":12,\"stream\":true,\"stream_options\":{\"include_usage\":true}}" > stream
    cart_equal "$(sed -n 's/^data: //p' stream | grep -v '^\[DONE' | jq -j '.choices[0].delta.content // empty'; echo .)" \
        "$(jq -j '.choices[0].message.content' whole; echo .)"
    cart_equal "$(tail -n 2 stream | head -n 1)" 'data: [DONE]'
    cart_equal "$(grep -c '"finish_reason":"' stream)" 1
    cart_equal "$(grep -c '"usage":' stream)" 1
    cart_equal "$(jq -c '.usage | [.prompt_tokens + .completion_tokens == .total_tokens, .cartridge_tokens]' whole)" '[true,0]'
    serve_end
}

@test "a warm server answers as fresh ones do, and says what it had" {
    make_cartridges
    local turns='{"role":"user","content":"one two three four"}' i
    local more="$turns,{\"role\":\"assistant\",\"content\":\"five\"},{\"role\":\"user\",\"content\":\"six\"}"
    local bodies=()
    for i in "$turns" "$more" '{"role":"user","content":"one two three five"}'; do
        bodies+=("{\"model\":\"m:one\",\"seed\":5,\"max_tokens\":30,\"messages\":[$i]}"
            "{\"cartridges\":[\"one\",\"two\"],\"temperature\":0,\"max_tokens\":30,\"messages\":[$i]}")
    done
    local ids
    ids=$(seq -s , 3 302)
    # The prompt itself, scored by one choice or only repeated: its rows are there for the others.
    bodies+=("{\"prompt\":[$ids],\"max_tokens\":6,\"n\":3,\"temperature\":0,\"echo\":true,\"seed\":1,\"logprobs\":1}"
        "{\"prompt\":[$ids],\"max_tokens\":6,\"n\":3,\"temperature\":0,\"echo\":true,\"seed\":1}"
        "{\"prompt\":[$ids],\"max_tokens\":0,\"n\":2,\"echo\":true}")
    serve_start -c one=one.safetensors -c two=two.safetensors --kv 600
    for _ in 1 2; do
        for i in "${!bodies[@]}"; do post "$(path_of "${bodies[i]}")" "${bodies[i]}" > "warm.$i"; done
    done
    cart_equal "$(jq '.usage.prompt_tokens_details.cached_tokens > 0' warm.2)" true
    # Only scores need the whole prompt once more; an echo without them does not.
    cart_equal "$(jq .usage.prompt_tokens_details.cached_tokens warm.6 warm.7 warm.8 | tr '\n' ' ')" '0 299 299 '
    cart_equal "$(jq -c '[.choices[].text | length > 100] | unique' warm.6 warm.7 warm.8 | tr '\n' ' ')" '[true] [true] [true] '
    serve_end
    for i in "${!bodies[@]}"; do
        serve_start -c one=one.safetensors -c two=two.safetensors --draft 0 -j 1
        post "$(path_of "${bodies[i]}")" "${bodies[i]}" > fresh
        serve_end
        cart_equal "$(jq -c '[.choices, .system_fingerprint]' "warm.$i")" "$(jq -c '[.choices, .system_fingerprint]' fresh)"
    done
}

@test "--kv: rows of 16 bits take half the memory, and are a class of their own that nothing else changes" {
    make_cartridges
    local body="{\"model\":\"m:one\",$HELLO,\"max_tokens\":40,\"logprobs\":true}" kv
    for kv in f32 f16 bf16; do
        serve_start -c one=one.safetensors --kv "$kv:640" --slots 2 --ctx 256
        post /v1/chat/completions "$body" > "$kv.cold"
        post /v1/chat/completions "$body" > "$kv.warm"
        cart_equal "$(jq '.usage.prompt_tokens_details.cached_tokens > 0' "$kv.warm")" true
        metric kv_bytes > "$kv.bytes"
        serve_end
        serve_start -c one=one.safetensors --kv "$kv" --draft 0 -j 1 --ctx 256
        post /v1/chat/completions "$body" > "$kv.fresh"
        serve_end
        cart_equal "$(jq -c '[.choices, .system_fingerprint]' "$kv.cold")" "$(jq -c '[.choices, .system_fingerprint]' "$kv.warm")"
        cart_equal "$(jq -c '[.choices, .system_fingerprint]' "$kv.cold")" "$(jq -c '[.choices, .system_fingerprint]' "$kv.fresh")"
    done
    # Beside the rows a page has its own few bytes.
    awk -v f32="$(cat f32.bytes)" -v f16="$(cat f16.bytes)" 'BEGIN { exit !(f16 / f32 > 0.5 && f16 / f32 < 0.52) }'
    cart_equal "$(cat bf16.bytes)" "$(cat f16.bytes)"
    cart_equal "$(jq -s 'map(.system_fingerprint) | unique | length' f32.cold f16.cold bf16.cold)" 3
    cart_equal "$(jq -cs 'map(.choices[0].logprobs.content[0].logprob) | unique | length' f32.cold f16.cold bf16.cold)" 3
    for kv in f8 f16: :600 f16:0 15 600: -1 f16:600x; do
        cart_must_fail 2 cart-serve --port 0 --kv "$kv" 2>err
        cart_has err '--kv: expected'
    done
}

@test "each way to name cartridges gives the same rows, and says which" {
    make_cartridges
    serve_start -c one=one.safetensors -c two=two.safetensors --default two
    post /v1/chat/completions "{\"model\":\"m:one\",$HELLO,\"max_tokens\":8}" -D head > by-model
    post /v1/chat/completions "{\"cartridges\":[\"one\"],$HELLO,\"max_tokens\":8}" > by-field
    post /v1/chat/completions "{\"cartridges\":[{\"id\":\"two\",\"source\":\"local\"},\"one\"],$HELLO,\"max_tokens\":8}" > both
    post /v1/chat/completions "{$HELLO,\"max_tokens\":8}" > default
    post /v1/cartridge/chat/completions "{\"cartridges\":[],$HELLO,\"max_tokens\":8}" > bare
    cart_equal "$(content < by-model)" "$(content < by-field)"
    grep -qi '^x-cartridges: one' head
    cart_equal "$(jq -c '[.cartridges, .cartridge_selection, .usage.cartridge_tokens]' both)" \
        '[[{"id":"two","rows":20},{"id":"one","rows":12}],"request",32]'
    cart_equal "$(jq -c '[.cartridges[0].id, .cartridge_selection]' default)" '["two","default"]'
    cart_equal "$(jq -c '[.cartridges, .usage.cartridge_tokens]' bare)" '[[],0]'
    cart_equal "$(get /v1/models | jq -c '[.data[].id]')" '["m","m:one","m:two"]'
    cart_equal "$(get /v1/models/m:two | jq -c '[.meta.p, (.meta.corpus | length > 8), (.meta.fingerprint.weights | length > 8)]')" \
        '[20,true,true]'
    cart_equal "$(post /v1/chat/completions "{\"cartridges\":[\"no\"],$HELLO}" | jq -r .error.code)" cartridge_not_found
    cart_equal "$(post /v1/chat/completions "{\"model\":\"m:no\",$HELLO}" | jq -r .error.code)" model_not_found
    cart_equal "$(post /v1/chat/completions "{\"cartridges\":[\"../one\"],$HELLO}" | jq -r .error.code)" cartridge_not_found
    serve_end
}

@test "a name that is not there is answered with those that are" {
    make_cartridges
    cp "$CART_MODEL" 'a model.gguf'
    said() { post /v1/chat/completions "{$1,$HELLO}" | jq -r '[.error.code, .error.param, .error.message] | join(" | ")'; }
    serve_start -c one=one.safetensors -c two=two.safetensors
    cart_equal "$(said '"model":"gpt"')" "model_not_found | model | model 'gpt' does not exist; there are m, m:one, m:two"
    cart_equal "$(said '"model":"m:"')" "model_not_found | model | model 'm:' does not exist; there are m, m:one, m:two"
    cart_equal "$(said '"model":"Two"')" "model_not_found | model | model 'Two' does not exist; did you mean 'm:two'?"
    cart_equal "$(said '"model":"M:ONE"')" "model_not_found | model | model 'M:ONE' does not exist; did you mean 'm:one'?"
    cart_equal "$(said '"cartridges":["One"]')" "cartridge_not_found | cartridges | cartridge 'One' does not exist; did you mean 'one'?"
    cart_equal "$(said '"cartridges":["one","x"]')" "cartridge_not_found | cartridges | cartridge 'x' does not exist; there are one, two"
    cart_equal "$(said '"cartridges":["one\u0000"]' | cut -c1-31)" "invalid_value | cartridges[0] |"
    cart_equal "$(get /v1/models/one | jq -r .error.message)" "model 'one' does not exist; did you mean 'm:one'?"
    serve_end
    CART_MODEL="$PWD/a model.gguf" cart-serve --dry-run 2>err
    cart_has err 'a-model: would serve it with 0 cartridges'
}

@test "a fault in a request names its field and what was found there" {
    serve_start
    local body want n=0
    while IFS='|' read -r body want; do
        cart_equal "$(post /v1/chat/completions "$body" | jq -r '.error | [.type, .code, .param, .message] | join(" | ")')" \
            "invalid_request_error | invalid_value | $want"
        n=$((n + 1))
    done <<'EOF'
{}|messages | messages: expected an array, found nothing
{"messages":null}|messages | messages: expected an array, found null
{"messages":[]}|messages | messages: expected 1 to 65536 messages, found 0
{"messages":{"role":"user","content":"a"}}|messages | messages: expected an array, found an object
{"messages":["a"]}|messages[0] | messages[0]: expected an object, found "a"
{"messages":[{"content":"a"}]}|messages[0].role | messages[0].role: expected a string, found nothing
{"messages":[{"role":7,"content":"a"}]}|messages[0].role | messages[0].role: expected a string, found 7
{"messages":[{"role":"robot","content":"a"}]}|messages[0].role | messages[0].role: expected system, developer, user, assistant or tool, found 'robot'
{"messages":[{"role":"user\u0000","content":"a"}]}|messages[0].role | messages[0].role: expected a string, found "user\x00"
{"messages":[{"role":"user"}]}|messages[0].content | messages[0].content: expected a string or an array of parts, found nothing
{"messages":[{"role":"user","content":null}]}|messages[0].content | messages[0].content: expected a string or an array of parts, found null
{"messages":[{"role":"user","content":7}]}|messages[0].content | messages[0].content: expected a string or an array of parts, found 7
{"messages":[{"role":"user","content":[]}]}|messages[0].content | messages[0].content: expected at least one part, found none
{"messages":[{"role":"assistant"}]}|messages[0].content | messages[0].content: expected a string or an array of parts, found nothing
{"messages":[{"role":"user","content":"a"}],"top_k":3000000000}|top_k | top_k: expected an integer from -1 to 2147483647, found 3000000000
{"messages":[{"role":"user","content":"a"}],"temperature":2.5}|temperature | temperature: expected a number from 0 to 2, found 2.5
{"messages":[{"role":"user","content":"a"}],"stream":"true"}|stream | stream: expected true or false, found "true"
{"messages":[{"role":"user","content":"a"}],"logit_bias":{"01":1}}|logit_bias | logit_bias: expected token ids from 0 to 319, found '01'
{"messages":[{"role":"user","content":"a"}],"logit_bias":{" 1":1}}|logit_bias | logit_bias: expected token ids from 0 to 319, found ' 1'
{"messages":[{"role":"user","content":"a"}],"logit_bias":{"1":101.5}}|logit_bias | logit_bias: expected numbers from -100 to 100, found 101.5
{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"xml"}}|response_format | response_format.type: expected text, json_object or json_schema, found "xml"
{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{}}}|response_format | response_format.json_schema.name: expected a string, found nothing
{"messages":[{"role":"user","content":"a"}],"stop":["a","b","c","d","e"]}|stop | stop: expected at most 4 strings, found 5
{"messages":[{"role":"user","content":"a"}],"stop":7}|stop | stop: expected a string, or an array of at most 4, found 7
{"messages":[{"role":"user","content":"a"}],"seed":"x"}|seed | seed: expected an integer, found "x"
{"messages":[{"role":"user","content":"a"}],"cartridges":"manual"}|cartridges | cartridges: expected an array, found "manual"
{"messages":[{"role":"user","content":"a"}],"cartridges":[7]}|cartridges[0] | cartridges[0]: expected a name, or an object with an id, found 7
{"messages":[{"role":"user","content":"a"}],"cartridge":"manual"}|cartridge | unknown field cartridge: did you mean cartridges?
{"messages":[{"role":"user","content":"a"}],"temprature":1}|temprature | unknown field temprature: did you mean temperature?
{"messages":[{"role":"user","content":"a"}],"max_tokesn":1}|max_tokesn | unknown field max_tokesn: did you mean max_tokens?
{"messages":[{"role":"user","content":"a"}],"maxTokens":1}|maxTokens | unknown field maxTokens: did you mean max_tokens?
{"messages":[{"role":"user","content":"a"}],"Stop":"a"}|Stop | unknown field Stop: did you mean stop?
EOF
    cart_equal "$n" 32
    # What other servers have is passed over, however near.
    cart_equal chat.completion "$(post /v1/chat/completions "{$HELLO,\"max_tokens\":1,\"min_tokens\":1,\"top_a\":0.5,\"typical_p\":1,\"step\":2,
        \"stop_token_ids\":[1],\"repeat_last_n\":64,\"n_probs\":0,\"Stop\":null,\"models\":[\"x\"],\"logits_processors\":[]}" | jq -r .object)"
    cart_equal 'unknown field inputs: did you mean input?' "$(post /v1/embeddings '{"input":"a","inputs":"b"}' | jq -r .error.message)"
    cart_equal 'expected a JSON object in the body, found an array' "$(post /v1/completions '[]' | jq -r .error.message)"
    local said='{"role":"user","content":"a"},{"role":"assistant","content":null}'
    cart_equal "$(post /v1/chat/completions "{\"messages\":[$said],\"max_tokens\":1,\"top_k\":5.0}" | jq -r .object)" chat.completion
    cart_equal "$(post /v1/completions '{"prompt":"a"}' -H 'Content-Encoding: gzip' -D head | jq -r .error.code)" unsupported_encoding
    grep -q '^HTTP/1.1 415' head
    cart_equal "$(status_of post /v1/completions '{"prompt":"a"}' -H 'Content-Encoding: identity')" 200
    serve_end
}

@test "a schema is held to the number, or refused by its limit at once; the server stays" {
    serve_start
    local want schema
    # with FILTER: an answer to the schema that FILTER makes.
    with() {
        jq -nc "$1 | {messages: [{role: \"user\", content: \"x\"}], seed: 3, max_tokens: 400, response_format:
            {type: \"json_schema\", json_schema: {name: \"a\", schema: .}}}" > body
        post /v1/chat/completions @body
    }
    with '{type: "string", minLength: 150, maxLength: 150}' > answer
    cart_equal "$(content < answer | jq length)" 150
    with '{type: "array", items: {type: "null"}, minItems: 12, maxItems: 12}' > answer
    cart_equal "$(content < answer | jq length)" 12
    with '{type: "object", properties: {("a" * 100000): {}}, additionalProperties: true}' > answer
    cart_equal "$(jq -r .object answer)" chat.completion
    while IFS='|' read -r want schema; do
        with "$schema" > answer
        cart_equal "$(jq -r '.error | [.code, .param, .message] | join(" ")' answer)" \
            "unsupported_schema response_format response_format.json_schema.schema: $want"
    done <<'EOF'
expected at most 1000 branches of anyOf, oneOf, allOf and prefixItems, found more|{oneOf: [range(40000) | {const: .}]}
expected at most 5000 properties, found more|{properties: ([range(5001) | {("a\(.)"): {}}] | add)}
uniqueItems: this keyword is not supported|{type: "array", uniqueItems: true}
$ref: expected # and the path of a place in this document, that does not lead back here|{"$ref": "#"}
EOF
    serve_end
}

@test "a directory is read again on HUP and on request; a cartridge can be loaded and dropped" {
    make_cartridges
    mkdir store
    cp one.safetensors store/one.cartridge.safetensors
    serve_start -d store
    cart_equal "$(get /v1/cartridges | jq -c '[.data[] | [.id, .p]]')" '[["one",12]]'
    cp two.safetensors store/two.safetensors
    echo nonsense > store/bad.safetensors
    kill -HUP "$SERVE_PID"
    until_metric cartridges 2
    cart_has serve.log 'cartridge bad: not loaded'
    post /v1/cartridges/reload '{}' > answer
    cart_equal '{"object":"reload","cartridges":2,"ids":["bad"]}' "$(jq -c '.ids = [.refused[].id] | del(.refused)' answer)"
    cart_has answer 'bad.safetensors'
    rm store/one.cartridge.safetensors store/bad.safetensors
    cart_equal '[]' "$(post /v1/cartridges/reload '{}' | jq -c .refused)"
    cart_equal "$(post /v1/cartridges/reload '{}' | jq .cartridges)" 1
    cart_equal "$(post /v1/cartridges '{"name":"again","file":"two.safetensors"}' | jq -c '[.id, .p]')" '["again",20]'
    cart_equal "$(post /v1/chat/completions "{\"model\":\"m:again\",$HELLO,\"max_tokens\":2}" | jq .usage.cartridge_tokens)" 20
    cart_equal "$(get /v1/cartridges/again -X DELETE | jq -c .deleted)" true
    cart_equal "$(status_of get /v1/cartridges/again -X DELETE)" 404
    cart_equal "name: cartridge 'again' does not exist; there is two" \
        "$(get /v1/cartridges/again -X DELETE | jq -r '"\(.error.param): \(.error.message)"')"
    cart_equal 'file: file: expected the name of a file in the served directory, found "../one.safetensors"' \
        "$(post /v1/cartridges '{"name":"x","file":"../one.safetensors"}' | jq -r '"\(.error.param): \(.error.message)"')"
    cart_equal "$(status_of post /v1/cartridges '{"name":"none"}')" 404
    cart_equal 'the served directory has neither none.cartridge.safetensors nor none.safetensors' \
        "$(post /v1/cartridges '{"name":"none"}' | jq -r .error.message)"
    cart_equal 'the served directory has no file none.bin' \
        "$(post /v1/cartridges '{"name":"none","file":"none.bin"}' | jq -r .error.message)"
    serve_end
}

@test "what was loaded by request follows its file, what -c named stays" {
    make_cartridges
    mkdir store
    cp one.safetensors store/a.safetensors
    cp one.safetensors fixed.safetensors
    serve_start -d store/ -c fixed=fixed.safetensors
    rows() { get /v1/cartridges | jq -c '[.data[] | [.id, .p]]'; }
    post /v1/cartridges '{"name":"other","file":"a.safetensors"}' > /dev/null
    post /v1/cartridges '{"name":"a"}' > /dev/null
    cart_equal '[["a",12],["fixed",12],["other",12]]' "$(rows)"
    # Replaced as tools replace files, by a rename.
    cp two.safetensors store/.new
    mv store/.new store/a.safetensors
    cp two.safetensors fixed.new
    mv fixed.new fixed.safetensors
    post /v1/cartridges/reload '{}' > /dev/null
    cart_equal '[["a",20],["fixed",12],["other",20]]' "$(rows)"
    # A given name keeps its file, even where another file has that name.
    cp one.safetensors store/other.safetensors
    post /v1/cartridges/reload '{}' > /dev/null
    cart_equal '[["a",20],["fixed",12],["other",20]]' "$(rows)"
    # A damaged file leaves the cartridge that had its name.
    echo nonsense > store/.new
    mv store/.new store/a.safetensors
    post /v1/cartridges/reload '{}' > /dev/null
    cart_equal '[["a",20],["fixed",12],["other",20]]' "$(rows)"
    cart_has serve.log 'cartridge other: not loaded: store/a.safetensors'
    rm store/a.safetensors
    post /v1/cartridges/reload '{}' > /dev/null
    cart_equal '[["fixed",12],["other",12]]' "$(rows)"
    mv store gone
    cart_equal cannot_read "$(post /v1/cartridges/reload '{}' | jq -r .error.code)"
    cart_equal '[["fixed",12],["other",12]]' "$(rows)"
    cart_has serve.log 'store/: No such file'
    serve_end
}

@test "a cartridge that is written over in place is answered from no more, and ends nothing" {
    make_cartridges
    mkdir store
    for name in a b c; do cp one.safetensors "store/$name.safetensors"; done
    serve_start -d store --slots 1 -c fixed=two.safetensors
    ask() { post /v1/chat/completions "{\"model\":\"m:$1\",$HELLO,\"max_tokens\":8,\"ignore_eos\":true}"; }
    said() { ask "$1" | jq -r '.error.code // .usage.cartridge_tokens'; }
    ask a | content > before
    # A link, other permissions and another time leave the rows as they were.
    ln store/a.safetensors backup
    chmod 600 store/a.safetensors
    touch store/a.safetensors
    cart_equal "$(cat before)" "$(ask a | content)"
    # Another size: refused until it is read again.
    cat two.safetensors > store/a.safetensors
    cart_equal cartridge_changed "$(said a)"
    cart_equal cartridge_changed "$(post /v1/embeddings '{"model":"m:a","input":"a"}' | jq -r .error.code)"
    cart_equal 12 "$(said b)"
    # Bytes that are restored are those that were loaded, but who knows since when: only a reload does.
    cat one.safetensors > store/a.safetensors
    cart_equal cartridge_changed "$(said a)"
    cat two.safetensors > store/a.safetensors
    kill -HUP "$SERVE_PID"
    until_log() { for _ in $(seq 100); do grep -q "$1" serve.log && return; sleep 0.1; done; return 1; }
    until_log 'read again'
    cart_equal 20 "$(said a)"
    cat one.safetensors > store/a.safetensors
    post /v1/cartridges/reload '{}' > /dev/null
    cart_equal "$(cat before)" "$(ask a | content)"
    # The same size and time, and damaged: a reload does not take it.
    printf X | dd of=store/b.safetensors bs=1 seek=$(($(stat -c %s store/b.safetensors) - 40)) conv=notrunc status=none
    touch -r one.safetensors store/b.safetensors
    cart_equal cartridge_changed "$(said b)"
    post /v1/cartridges/reload '{}' > /dev/null
    cart_has serve.log 'cartridge b: not loaded'
    cart_equal cartridge_changed "$(said b)"
    # Cut off under an answer, which says so at its end.
    post /v1/chat/completions "{\"model\":\"m:c\",$HELLO,\"max_tokens\":300,\"ignore_eos\":true,\"n\":12,\"stream\":true}" -N > stream &
    local client=$!
    for _ in $(seq 200); do [ -s stream ] && break; sleep 0.05; done
    : > store/c.safetensors
    wait "$client"
    grep -q '"code":"cartridge_changed"' stream
    cart_equal cartridge_changed "$(said c)"
    # Under another name it is the same file.
    post /v1/cartridges '{"name":"b","file":"a.safetensors"}' > /dev/null
    mv store/a.safetensors away
    cart_equal 12 "$(said b)"
    cat two.safetensors > away
    cart_equal cartridge_changed "$(said b)"
    # A rename leaves what is served as it was.
    cp one.safetensors two.new
    mv two.new two.safetensors
    cart_equal 20 "$(said fixed)"
    serve_end
}

@test "a slash more at the end or between changes no path" {
    serve_start
    cart_equal '["m"]' "$(get /v1/models/ | jq -c '[.data[].id]')"
    cart_equal '"m"' "$(get /v1//models/m/ | jq .id)"
    cart_equal '{"status":"ok"}' "$(get //health//)"
    cart_equal '"chat.completion"' "$(post //v1/chat/completions/ "{$HELLO,\"max_tokens\":1}" | jq .object)"
    cart_equal 405 "$(status_of post /v1/models/ '{}')"
    cart_equal 404 "$(status_of get /v1/models/m/n)"
    cart_equal 404 "$(status_of get /v1/nothing/)"
    get / > page
    grep -q '<html' page
    serve_end
}

@test "a cartridge that is dropped stays with the answer that uses it" {
    make_cartridges
    mkdir store
    cp one.safetensors store/
    serve_start -d store
    post /v1/chat/completions "{\"model\":\"m:one\",$HELLO,\"max_tokens\":40}" > before
    post /v1/chat/completions "{\"model\":\"m:one\",$HELLO,\"max_tokens\":40,\"stream\":true}" > during &
    local client=$!
    rm store/one.safetensors
    post /v1/cartridges/reload '{}' > /dev/null
    wait "$client"
    # The drop may have come first; then the request was refused, and that is all right too.
    if grep -q DONE during; then
        cart_equal "$(sed -n 's/^data: {/{/p' during | jq -j '.choices[0].delta.content // empty'; echo .)" \
            "$(jq -j '.choices[0].message.content' before; echo .)"
    else
        cart_has during model_not_found
    fi
    cart_equal "$(status_of post /v1/chat/completions "{\"model\":\"m:one\",$HELLO}")" 404
    serve_end
}

@test "keys are asked for everywhere but at health and the page" {
    printf '# team\nsecret-1\nsecret-2\n' > keys
    CART_API_KEY=env-key serve_start --api-key-file keys
    cart_equal "$(status_of get /health)" 200
    cart_equal "$(status_of get /)" 200
    cart_equal "$(status_of get /metrics)" 401
    cart_equal "$(status_of get /v1/models)" 401
    cart_equal "$(status_of get /v1/models -H 'Authorization: Bearer secret')" 401
    cart_equal "$(get /v1/models -H 'Authorization: Bearer wrong' | jq -r .error.code)" invalid_api_key
    cart_equal "$(status_of get /v1/models -H 'Authorization: Bearer secret-2')" 200
    cart_equal "$(status_of get /v1/models -H 'x-api-key: env-key')" 200
    serve_end
    cart_must_fail 1 grep -q secret serve.log
}

@test "foreign hosts and origins are refused, loopback and named ones are not" {
    serve_start --cors-origin https://ui.example --allow-host proxy.example
    cart_equal "$(status_of get /v1/models -H 'Host: evil.example')" 403
    cart_equal "$(status_of get /v1/models -H 'Host: proxy.example')" 200
    # A target in absolute form names the authority, whatever Host says.
    cart_equal "$(status_of get /v1/models --request-target http://evil.example/v1/models)" 403
    cart_equal "$(status_of get /v1/models -H 'Host: evil.example' --request-target HTTP://proxy.example/v1/models)" 200
    cart_equal "$(status_of get /v1/models -H 'Origin: http://evil.example')" 403
    cart_equal "$(status_of get /v1/models -H 'Origin: null')" 403
    get /v1/models -H 'Origin: http://localhost:3000' -D head > /dev/null
    grep -qi '^access-control-allow-origin: http://localhost:3000' head
    get /v1/chat/completions -X OPTIONS -H 'Origin: https://ui.example' -H 'Access-Control-Request-Headers: x-a' -D head > /dev/null
    grep -q '^HTTP/1.1 204' head
    grep -qi '^access-control-allow-headers: x-a' head
    serve_end
}

@test "a full queue is 429 with Retry-After, a large body 413, an endless prompt 400 with its numbers" {
    serve_start --slots 1 --queue 1 --max-body 4096 --ctx 128 --draft 0
    local i
    for i in 1 2 3 4 5 6 7 8; do
        post /v1/completions '{"prompt":["a","b","c","d"],"max_tokens":100,"ignore_eos":true}' -D "head.$i" > "out.$i" &
    done
    for i in 1 2 3 4 5 6 7 8; do wait -n || true; done
    grep -q '^HTTP/1.1 429' head.*
    grep -qi '^retry-after: 1' $(grep -l '^HTTP/1.1 429' head.* | sed -n 1p)
    head -c 5000 /dev/zero | tr '\0' 'x' > large
    cart_equal "$(status_of get /v1/completions -d @large)" 413
    cart_equal "$(status_of get /v1/completions -d @large -H 'Transfer-Encoding: chunked')" 413
    post /v1/completions "{\"prompt\":\"$(head -c 2000 large)\"}" > long
    cart_equal "$(jq -c '.error | [.code, .n_ctx, .n_cartridge_rows, (.n_prompt_tokens > 128)]' long)" \
        '["context_length_exceeded",128,0,true]'
    serve_end
}

# zeros N: a body with a member that nobody knows, of N numbers.
zeros() {
    awk -v n="$1" 'BEGIN { printf "{\"prompt\":\"a\",\"max_tokens\":1,\"unknown\":[0"; while (--n) printf ",0"; print "]}" }'
}

@test "a body whose values would take far more than its text is refused before they are made" {
    serve_start --slots 1 --ctx 128 --draft 0 --max-body 4M
    zeros 1700000 > dense
    cart_equal "$(status_of post /v1/completions @dense)" 413
    post /v1/completions @dense > answer
    cart_equal "$(jq -r .error.code answer)" values_too_large
    jq -r .error.message answer | grep -q '^body: JSON: expected values that take at most 7050[0-9]* bytes of memory, found more'
    zeros 800000 > dense
    post /v1/completions @dense > answer
    cart_equal "$(jq .usage.completion_tokens answer)" 1
    serve_end
}

@test "a client that leaves frees its place, one that closes its side is answered" {
    cart_need_tool python3
    serve_start --slots 1 --ctx 512 --draft 0
    python3 - "${SERVE_URL##*:}" > answer <<'PY'
import json, socket, sys, time
def raw(**more):
    body = json.dumps({"prompt": "a", "ignore_eos": True, **more}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
address = ("127.0.0.1", int(sys.argv[1]))
gone = [socket.create_connection(address) for _ in range(6)]
for s in gone:
    s.sendall(raw(max_tokens=500, n=128))
time.sleep(0.3)
for s in gone:
    s.close()
s = socket.create_connection(address)
s.sendall(raw(max_tokens=10))
s.shutdown(socket.SHUT_WR)
data = b""
while more := s.recv(65536):
    data += more
print(data.decode())
PY
    cart_has answer 'HTTP/1.1 200'
    cart_has answer '"finish_reason":"length"'
    until_metric requests_running 0
    cart_equal "$(metric requests_waiting)" 0
    serve_end
    cart_has serve.log ' 499 '
}

@test "who reads nothing of a stream holds a slot no longer than the answer takes, or until too much of it waits" {
    cart_need_tool python3
    serve_start --slots 2 --ctx 512 --draft 0
    python3 - "${SERVE_URL##*:}" > answer <<'PY'
import http.client, json, socket, sys, time
address = ("127.0.0.1", int(sys.argv[1]))
def begin(**more):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(address)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True,
                       "ignore_eos": True, **more}).encode()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return s
def ask(method, path, body=None):
    c = http.client.HTTPConnection(*address, timeout=120)
    c.request(method, path, body, {"Content-Type": "application/json"})
    text = c.getresponse().read().decode()
    c.close()
    return text
def gauge(name):
    return next(int(line.split()[1]) for line in ask("GET", "/metrics").splitlines() if line.startswith("cart_" + name + " "))
# Two whose answers fit in what is kept for them, two whose answers (some 25 MB) do not.
small = [begin(max_tokens=50) for _ in range(2)]
large = [begin(max_tokens=400, n=32, logprobs=True, top_logprobs=20) for _ in range(2)]
answer = json.loads(ask("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 5, "ignore_eos": True})))
print("answered", answer["usage"]["completion_tokens"])
while gauge("requests_running") + gauge("requests_waiting") > 0:
    time.sleep(0.05)
print("nothing runs")
def read(s):
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n") and (more := s.recv(1 << 20)):
        data += more
    return data
for s in small:
    print("whole" if b'"finish_reason":"length"' in read(s) else "not whole")
for s in large:
    print("cut off" if b'"code":"reader_too_slow"' in read(s) else "not cut off")
PY
    cart_equal "$(tr '\n' ' ' < answer)" 'answered 5 nothing runs whole whole cut off cut off '
    serve_end
}

@test "whatever a client closes with its last bytes, each whole request is answered, and all is closed" {
    cart_need_tool python3
    serve_start --timeout 60
    python3 - "${SERVE_URL##*:}" <<'PY'
import re, socket, sys, time
address = ("127.0.0.1", int(sys.argv[1]))
get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
post = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 29\r\n\r\n{"prompt":"a","max_tokens":3}'
def statuses(data):
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d+) ", data) if s != b"100"]
for raw, want, closes in ((get, [200], True), (get * 3, [200] * 3, True), (post, [200], True), (post * 2, [200] * 2, True),
                          (post[:-5], [], True), (post + post[:-5], [200], True), (get[:-1], [], True), (b"", [], True),
                          (post + b"GET / HTTP/1.1\n\n" + get, [200, 400], False),
                          (post * 2 + get.replace(b"localhost", b""), [200, 200, 400], False)):
    start, data = time.time(), b""
    with socket.create_connection(address, timeout=20) as s:
        s.sendall(raw)
        if closes:
            s.shutdown(socket.SHUT_WR)
        while more := s.recv(65536):
            data += more
    assert statuses(data) == want, (raw, data)
    assert time.time() - start < 10, raw
PY
    serve_end
}

@test "TERM: what is under way ends, what comes is refused, the exit status is 0" {
    serve_start --slots 1 --draft 0 --drain-timeout 300
    post /v1/completions '{"prompt":"a","n":40,"max_tokens":500,"ignore_eos":true,"stream":true}' > stream &
    local client=$!
    until_metric requests_running 1
    kill -TERM "$SERVE_PID"
    sleep 0.2
    cart_equal "$(status_of get /health)" 503
    cart_equal "$(post /v1/completions '{"prompt":"a"}' | jq -r .error.code)" shutting_down
    wait "$client"
    cart_equal "$(tail -n 2 stream | head -n 1)" 'data: [DONE]'
    cart_equal "$(grep -c '"finish_reason":"length"' stream)" 40
    local status=0
    wait "$SERVE_PID" || status=$?
    SERVE_PID=
    cart_equal "$status" 0
}

@test "a second TERM cuts off; a cut stream says so" {
    serve_start --slots 1 --draft 0
    post /v1/completions '{"prompt":"a","n":128,"max_tokens":500,"ignore_eos":true,"stream":true}' > stream &
    local client=$! status=0
    until_metric requests_running 1
    kill -TERM "$SERVE_PID"
    sleep 0.1
    kill -TERM "$SERVE_PID"
    wait "$SERVE_PID" || status=$?
    SERVE_PID=
    cart_equal "$status" 0
    wait "$client"
    cart_has stream '"code":"shutting_down"'
    [ "$(grep -c '"finish_reason":"' stream || true)" -lt 128 ]
}

@test "a Unix socket, and one that a killed server left behind" {
    cart-serve --name m --no-tcp --unix sock 2>serve.log 3>&- &
    SERVE_PID=$!
    until curl -s -o /dev/null --unix-socket sock http://any/health; do
        kill -0 "$SERVE_PID"
        sleep 0.05
    done
    cart_equal "$(curl -s --unix-socket sock http://any/v1/models | jq -r '.data[0].id')" m
    cart_must_fail 5 cart-serve --no-tcp --unix sock 2>err
    cart_has err 'another server'
    kill -KILL "$SERVE_PID"
    wait "$SERVE_PID" || true
    : > serve.log
    cart-serve --name m --no-tcp --unix sock 2>>serve.log 3>&- &
    SERVE_PID=$!
    until grep -q ready serve.log; do
        kill -0 "$SERVE_PID"
        sleep 0.05
    done
    cart_equal "$(curl -s --unix-socket sock http://any/health)" '{"status":"ok"}'
    serve_end
    [ ! -e sock ]
}

@test "the log says where it listens, as a URL has it" {
    python3 -c 'import socket; s = socket.socket(socket.AF_INET6); s.bind(("::1", 0))' || skip 'machine: no IPv6'
    serve_start --host ::1
    [[ $SERVE_URL == http://\[::1\]:* ]]
    cart_equal 200 "$(status_of get /health -g)"
    serve_end
}

@test "a socket from systemd" {
    cart_need_tool python3
    cat > activate.py <<'PY'
import os, socket, sys
s = socket.socket()
s.bind(("127.0.0.2", 0))
s.listen(8)
print(s.getsockname()[1], flush=True)
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execvp(sys.argv[1], sys.argv[1:])
PY
    python3 activate.py cart-serve --name m > port 2> serve.log 3>&- &
    SERVE_PID=$!
    until [ -s port ]; do sleep 0.05; done
    SERVE_URL=http://127.0.0.2:$(cat port)
    cart_equal "$(get /health)" '{"status":"ok"}'
    cart_has serve.log "ready on $SERVE_URL"
    serve_end
}

@test "logs for people and for machines, events in CART_TRACE" {
    export CART_TRACE=$PWD/trace
    serve_start --log-format json
    post /v1/chat/completions "{$HELLO,\"max_tokens\":4}" -H 'X-Request-Id: mine-1' -D head > /dev/null
    grep -qi '^x-request-id: mine-1' head
    serve_end
    cart_equal "$(grep '^{' serve.log | jq -c 'select(.id == "mine-1") | [.status, .path, .completion_tokens, .finish, .model]')" \
        '[200,"/v1/chat/completions",4,"length","m"]'
    cart_equal "$(jq -c 'select(.event == "request") | [.id, .tool]' trace)" '["mine-1","cart-serve"]'
    serve_start
    post /v1/chat/completions "{$HELLO,\"max_tokens\":4}" > /dev/null
    serve_end
    grep -q 'POST /v1/chat/completions 200 .*answer 4 length' serve.log
    # What monitors ask for is for -v, in either form and however its path is written.
    local format path
    for format in text json; do
        serve_start --log-format "$format"
        for path in /health /v1/health/ /metrics; do get "$path" > /dev/null; done
        get /props > /dev/null
        serve_end
        cart_has serve.log /props
        cart_must_fail 1 grep -E '/health|/metrics' serve.log
        serve_start --log-format "$format" -v
        for path in /health /v1/health/ /metrics; do get "$path" > /dev/null; done
        serve_end
        cart_equal 3 "$(grep -cE '/health|/metrics' serve.log)"
    done
}

@test "what is refused is logged with the reason that the client gets" {
    local format
    for format in text json; do
        serve_start --log-format "$format" --ctx 64
        get /nope > nope
        get /v1/completions > method
        post /v1/completions '{"prompt":7}' > value
        post /v1/completions "{\"prompt\":\"$(printf 'a%.0s' {1..200})\"}" > long
        serve_end
        mv serve.log "log.$format"
    done
    cart_has nope '"message":"no path /nope; there are /chat/completions, '
    cart_has nope ', /metrics, /props"'
    cart_equal '/v1/completions: expected POST, found GET' "$(jq -r .error.message method)"
    cart_has log.text ' GET /nope 404 '
    cart_has log.text ' ms: no path /nope; there are /chat'
    cart_has log.text ' ms: /v1/completions: expected POST, found GET'
    cart_has log.text ' ms: prompt: expected a string, an array of strings'
    cart_has log.text " ms: This model's maximum context length is 64 tokens; 0 cartridge rows and a prompt of 200"
    cart_must_fail 1 grep 'prompt 0' log.text
    cart_equal 'not_found method_not_allowed invalid_value context_length_exceeded' \
        "$(grep '^{' log.json | jq -r '.error' | xargs)"
    cart_equal "$(jq -r .error.message nope method value long)" "$(grep '^{' log.json | jq -r .message)"
    cart_equal 0 "$(grep '^{' log.json | jq -c 'select(has("prompt_tokens"))' | wc -l)"
}

@test "why a file cannot be read is in the answer and in the log" {
    [ -z "${CART_SANITIZED-}" ] || skip "machine: the sanitizer needs all addresses"
    mkdir store
    truncate -s 64G store/large.safetensors
    ulimit -Sv $((32 << 20)) # KiB: the file cannot be mapped
    serve_start -d store
    post /v1/cartridges '{"name":"large"}' > answer
    cart_equal cannot_read "$(jq -r .error.code answer)"
    cart_has answer 'store/large.safetensors: mapping 68719476736 bytes: Cannot allocate memory'
    serve_end
    [ "$(grep -c 'cartridge large: not loaded: store/large.safetensors: mapping .*: Cannot allocate memory' serve.log)" -ge 1 ]
}

@test "metrics are Prometheus text: each with HELP and TYPE, histograms that add up" {
    serve_start
    post /v1/chat/completions "{$HELLO,\"max_tokens\":4}" > /dev/null
    get /metrics > metrics
    awk '/^# HELP/ { help[$3] = 1; next } /^# TYPE/ { type[$3] = $4; next }
        { name = $1; sub(/\{.*/, "", name); base = name; sub(/_(bucket|sum|count)$/, "", base)
          if (type[base] == "histogram") name = base
          if (!(name in help) || !(name in type)) { print "no HELP or TYPE: " name; bad = 1 }
          if (type[name] == "counter" && name !~ /_total$/) { print "counter without _total: " name; bad = 1 }
          if ($0 !~ /^[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [-+0-9.e]+$/) { print "malformed: " $0; bad = 1 } }
        END { exit bad }' metrics
    cart_equal "$(metric generated_tokens_total)" 4
    cart_equal "$(sed -n 's/^cart_time_to_first_token_seconds_count //p' metrics)" 1
    serve_end
}

@test "completions: lists, ids, echo and logprobs; embeddings: both forms; tokenize and back" {
    serve_start
    post /v1/completions '{"prompt":[[1,2,3],[4]],"max_tokens":0,"echo":true,"logprobs":1}' > scored
    cart_equal "$(jq -c '[.choices[] | .logprobs.token_logprobs | length], [.choices[].logprobs.token_logprobs[0]]' scored)" \
        $'[3,1]\n[null,null]'
    post /v1/embeddings '{"input":["a","b"]}' > floats
    post /v1/embeddings '{"input":["a","b"],"encoding_format":"base64"}' > base64
    cart_equal "$(jq '.data | length' floats)" 2
    cart_equal "$(jq -r '.data[1].embedding' base64 | base64 -d | od -An -v -t f4 -w4 | awk '{ printf "%.5f\n", $1 }' | sed -n 1,4p)" \
        "$(jq -r '.data[1].embedding[]' floats | awk '{ printf "%.5f\n", $1 }' | sed -n 1,4p)"
    cart_equal "$(jq '[.data[0].embedding[] | . * .] | add | . > 0.9999 and . < 1.0001' floats)" true
    post /tokenize '{"content":"h\u00e9 \ud83d\ude00!"}' | jq -c '{tokens: .tokens}' > ids
    cart_equal "$(post /detokenize "$(cat ids)" | jq -c .content)" '"hé 😀!"'
    cart_equal "$(post /apply-template "{$HELLO}" | jq -c .prompt | grep -c hello)" 1
    cart_equal "$(post /v1/chat/completions/input_tokens "{$HELLO}" | jq '.input_tokens > 3')" true
    serve_end
}

# vector INPUT [MODEL]: of one embedding, and how many tokens it took.
vector() {
    post /v1/embeddings "{\"input\":$1,\"model\":\"${2-m}\"}" | jq -ce '.data[0].embedding + [.usage.prompt_tokens]'
}

@test "embeddings: token ids are as good as their text, with a BOS or without, behind a cartridge too" {
    local model text bos id
    for model in qwen3 llama3_untied; do
        cart_tiny $model
        seq 1 60 | sed 's/$/ sheep in the rain/' | cart-tokenize -q - | cart-init -q -p 16 -o c.safetensors
        serve_start -c c=c.safetensors
        for text in '"It rains."' '"ends in a line\n"' '"h\u00e9 \ud83d\ude00 <|im_end|>!"'; do
            for id in m m:c; do
                vector "$text" $id > want
                for bos in false true; do
                    vector "[$(post /tokenize "{\"content\":$text,\"add_special\":$bos}" | jq -c .tokens)]" $id > got
                    cmp want got
                done
            done
        done
        # Ids that no text has: the words still follow.
        cart_equal "$(vector '[104,105]' | jq '.[-1] > 20')" true
        cart_equal "$(vector '[7,7,7]' | jq '.[-1]')" "$(($(vector '[7,7]' | jq '.[-1]') + 1))"
        serve_end
    done
}

@test "the page is one file that loads nothing from elsewhere" {
    serve_start
    get / -D head > page
    grep -qi '^content-type: text/html' head
    cart_equal "$(get / | cmp - "$CART_ROOT/lib/serve/page.html" && echo same)" same
    cart_must_fail 1 grep -qE '(src|href)=|url\(|@import|https?://' page
    serve_end
}

@test "crafted requests: every verdict" {
    cart_need_tool python3
    cart_need "$CART_SHARED/data/http-crafted/raw-requests.jsonl"
    serve_start --ctx 64 --timeout 2
    local mode
    for mode in raw after behind; do
        python3 "$CART_ROOT/tests/helper/http_crafted.py" "${SERVE_URL#http://}" "$mode" \
            "$CART_SHARED/data/http-crafted/raw-requests.jsonl" > raw || { grep -A1 '^not' raw >&2; false; }
        cart_equal "$(tail -n 1 raw)" '# 48 of 48'
    done
    python3 "$CART_ROOT/tests/helper/http_crafted.py" "${SERVE_URL#http://}" bodies \
        "$CART_SHARED/data/http-crafted/chat-bodies.jsonl" > bodies || { grep -A1 '^not' bodies >&2; false; }
    cart_equal "$(tail -n 1 bodies)" '# 74 of 74'
    serve_end
}

@test "the vectors of llhttp: agreed, or a reason is listed" {
    cart_need_tool python3
    cart_need "$CART_SHARED/data/llhttp/sample.md"
    serve_start --ctx 64 --timeout 2
    python3 "$CART_ROOT/tests/helper/http_llhttp.py" "${SERVE_URL#http://}" "$CART_SHARED/data/llhttp" > vectors ||
        { grep -A1 '^not' vectors >&2; false; }
    tail -n 1 vectors | grep -q '^# 166 vectors: .* 0 neither$'
    serve_end
}

@test "who does not end a request in time is told so, who has begun none is closed" {
    cart_need_tool python3
    serve_start --timeout 1
    python3 - "${SERVE_URL##*:}" <<'PY' > said
import socket, sys
def late(sent):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
    s.sendall(sent)
    got = b""
    while more := s.recv(65536):
        got += more
    return got.split(b"\r\n")[0].decode(), got.count(b"HTTP/1.1"), b"bad_request" in got
head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
print(late(b""), late(head), late(head + b"Content-Length: 9\r\n\r\n{"), late(head + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{"),
      late(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), sep="\n")
PY
    cart_equal "('', 0, False)
('HTTP/1.1 408 Request Timeout', 1, True)
('HTTP/1.1 408 Request Timeout', 1, True)
('HTTP/1.1 408 Request Timeout', 1, True)
('HTTP/1.1 200 OK', 1, False)" "$(cat said)"
    serve_end
}

@test "hundreds of idle and slow connections leave the others alone, and no descriptor behind" {
    cart_need_tool python3
    serve_start --connections 200 --timeout 2
    local before
    before=$(ls "/proc/$SERVE_PID/fd" | wc -l)
    python3 - "${SERVE_URL##*:}" <<'PY'
import http.client, socket, sys, time
address = ("127.0.0.1", int(sys.argv[1]))
idle = [socket.create_connection(address) for _ in range(300)]
for s in idle[::3]:
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a")
worst = 0
for _ in range(20):
    t = time.time()
    c = http.client.HTTPConnection(*address, timeout=5)
    c.request("GET", "/health")
    assert c.getresponse().status == 200
    c.close()
    worst = max(worst, time.time() - t)
assert worst < 1, worst
time.sleep(3)
for s in idle:
    s.settimeout(1)
    try:
        assert s.recv(12) in (b"", b"HTTP/1.1 408")
    except ConnectionResetError:
        pass
PY
    sleep 0.5
    [ "$(ls "/proc/$SERVE_PID/fd" | wc -l)" -le "$((before + 2))" ]
    serve_end
}

@test "answers under load equal those of processes of their own" {
    cart_need_tool python3
    make_cartridges
    cart_equal "$(python3 "$CART_ROOT/tests/clients/equality.py" 40 | grep -c '^ok')" 2
    cart_equal "$(python3 "$CART_ROOT/tests/clients/equality.py" 20 12 bf16 | grep -c '^ok')" 2
}
