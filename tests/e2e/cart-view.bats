#!/usr/bin/env bats
# cart-view: listings and back, verdicts, joining, conversion, and what it says to bad input.

load ../helper/common

HEAD='{"record":"head","history":[],"kind":"tokens","limits":{"record":1073741824},"model":{"geometry":"00","tokenizer":"11"},"version":[1,0]}'
SHA='"sha256":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"'

make_listing() {
    printf '%s\n' "$HEAD" \
        '{"record":"doc","bytes":5,"doc":0,"path":"a.txt",'"$SHA"',"tokens":[1,2,3]}' \
        '{"record":"doc","bytes":0,"doc":1,"path":"b.txt",'"$SHA"',"tokens":[]}' \
        '{"record":"end"}'
}

# conv N SPLIT: a conversation's line.
conv() {
    printf '{"record":"conv","chunk":[0,3],"context":"chunk","context_span":[0,3],"doc":0,"finish_reasons":[],'
    printf '"messages":[],"n":%d,"parts":[],"seed_type":"question","split":"%s",' "$1" "$2"
    printf '"ids":[1,2,3],"supervised":[[1,3]]}\n'
}

make_shard() {
    printf '%s\n' "${HEAD/tokens/conversations}" '{"record":"doc","bytes":5,"doc":0,'"$SHA"',"tokens":[1,2,3]}'
    for n in "$@"; do conv "$n" train; done
    echo '{"record":"end"}'
}

# A cartridge of two layers with made-up rows.
make_cartridge() {
    local hex=0123456789abcdef0123456789abcdef
    local meta='"cart.version":"1","cart.geometry":"'$hex'","cart.tokenizer":"'$hex'","cart.weights":"'$hex'","cart.p":"3"'
    meta+=',"cart.frozen":"1","cart.first_position":"0","cart.steps":"0","cart.rope_order":"half","cart.precision":"f32"'
    meta+=',"cart.history":"[]"'
    printf '{"record":"safetensors","metadata":{%s},"tensors":8}\n' "$meta"
    echo '{"record":"tensor","name":"layers.0.k_sink","dtype":"F32","shape":[1,1,2],"data":[[[0.1,-0.0]]]}'
    echo '{"record":"tensor","name":"layers.0.v_sink","dtype":"F32","shape":[1,1,2],"data":[[[1,2]]]}'
    echo '{"record":"tensor","name":"layers.0.k","dtype":"F32","shape":[2,1,2],"data":[[[1,2]],[[3,4.5]]]}'
    echo '{"record":"tensor","name":"layers.0.v","dtype":"F32","shape":[2,1,2],"data":[[[1,2]],[[3,65504]]]}'
    echo '{"record":"tensor","name":"layers.1.k_sink","dtype":"F32","shape":[1,1,2],"data":[[[1,2]]]}'
    echo '{"record":"tensor","name":"layers.1.v_sink","dtype":"F32","shape":[1,1,2],"data":[[[1,2]]]}'
    echo '{"record":"tensor","name":"layers.1.k","dtype":"F32","shape":[2,1,2],"data":[[[1,2]],[[3,1e-05]]]}'
    echo '{"record":"tensor","name":"layers.1.v","dtype":"F32","shape":[2,1,2],"data":[[[1,2]],[[3,4]]]}'
    echo '{"record":"end","tensors":8}'
}

@test "--check refuses the cartridges that no reader takes" {
    cart_need_tool jq
    cart_tiny llama_tied
    echo 'The kettle has a copper base. Its lid opens with a small lever.' > k.txt
    cart-tokenize -q -o k.tokens k.txt
    cart-init -q -p 16 -o k.cart k.tokens
    cart-view --check k.cart
    cart-view --data k.cart > k.jsonl
    # One flipped bit of the metadata, then what is wrong whatever the digests say.
    for edit in version=3 rope_order=hanf first_position=2 steps=1; do
        jq -c --arg k "cart.${edit%=*}" --arg v "${edit#*=}" 'if .metadata then .metadata[$k] = $v else . end' k.jsonl |
            cart-view -q --pack -o bad.cart -
        cart_must_fail 3 cart-view --check bad.cart
    done
    jq -c 'if .metadata then .metadata["cart.weightr"] = .metadata["cart.weights"] | del(.metadata["cart.weights"])
        else . end' k.jsonl | cart-view -q --pack -o bad.cart -
    cart_must_fail 3 cart-ask -c bad.cart hello < /dev/null 2> err
    cart_has err 'cart.weights is missing'
    cart-view -q --dtype f16 -o h.cart k.cart
    cart-view --check h.cart
    jq -c 'if .metadata then del(.metadata["cart.data"], .metadata["cart.sum"]) else . end' k.jsonl > e.jsonl
    cart-view -q --pack -o e.cart e.jsonl
    cart-view --check e.cart
    cp e.jsonl k.jsonl
    for edit in '"cart.p" = "99"' '"cart.frozen" = "3"' '"cart.version" = "2"' '"cart.rope_order" = "up"' '"cart.history" = "[5]"' \
        '"cart.recipe" = "x"' '"cart.corpus" = "5"' '"cart.profile" = ""' '"cart.dtype" = "f64"' '"cart.precision" = "f32\u0000"'; do
        jq -c "if .metadata then .metadata.$edit else . end" k.jsonl | cart-view -q --pack -o bad.cart -
        cart_must_fail 3 cart-view --check bad.cart
        cart_must_fail 3 cart-view -q --dtype f16 -o no bad.cart
        cart_must_fail 3 cart-ask -c bad.cart hello < /dev/null 2> err
        cart_has err "$(cut -d\" -f2 <<< "${edit/cart.}")"
    done
    cart-init -q -p 16 --draft-ref -o d.cart k.tokens
    cart-view --data d.cart | jq -c 'if .metadata then del(.metadata["cart.data"], .metadata["cart.sum"]) else . end' > d.jsonl
    cart-view -q --pack -o e.cart d.jsonl
    cart-view --check e.cart
    for edit in '.dtype = "I32"' '.dtype = "F64"' '.shape = [1, (.data | length)] | .data = [.data]' '.data[1] = -1' \
        '.data[0] = 2147483648'; do
        jq -c "if .name == \"draft_reference\" then $edit else . end" d.jsonl | cart-view -q --pack -o bad.cart -
        cart_must_fail 3 cart-view --check bad.cart 2> err
        cart_has err 'bad.cart: tensor draft_reference: '
        cart_must_fail 3 cart-ask -c bad.cart hello < /dev/null
    done
    jq -c 'if .metadata then del(.metadata["cart.tokenizer"]) else . end' k.jsonl | cart-view -q --pack -o bad.cart -
    cart_must_fail 3 cart-view --check bad.cart 2> err
    cart_has err 'bad.cart: metadata: cart.tokenizer is missing'
}

@test "usage is the manual's synopsis" {
    cart_equal "$(cart_man_synopsis "$CART_ROOT/man/cart-view.1")" "$(cart_help_usage cart-view)"
}

@test "a higher minor version is packed as it was listed; another major one is refused" {
    make_listing | sed '1s/\[1,0\]/[1,9]/' > later.jsonl
    cart-view --pack -o later.tokens later.jsonl
    cart-view --check later.tokens
    cart-view later.tokens > listed
    head -n 1 listed | grep -qF '"version":[1,9]'
    cart-view --cat -o both.tokens later.tokens
    for version in '[2,0]' '[1]' '["1",0]' '[1,-1]' 1; do
        cart_must_fail 3 cart-view --pack -o x <(make_listing | sed "1s/\[1,0\]/$version/") 2> err
        cart_has err 'version: expected [1,MINOR] or none'
    done
}

@test "a stream survives listing and packing" {
    make_listing | cart-view --pack -o a.tokens
    cart-view a.tokens >a.jsonl
    cart_equal "$(sed -n 2p a.jsonl)" '{"record":"doc","bytes":5,"doc":0,"path":"a.txt",'"$SHA"',"tokens":[1,2,3]}'
    cart_equal "$(wc -l <a.jsonl)" 4
    cart-view --pack -o b.tokens a.jsonl
    cmp a.tokens b.tokens
    cart-view - <a.tokens | cmp - a.jsonl
    cart-view -o c.jsonl a.tokens
    cmp c.jsonl a.jsonl
}

@test "a compressed stream has the same listing" {
    { make_listing | sed -n 1,2p; printf '{"record":"doc","bytes":9,"doc":1,%s,"tokens":[' "$SHA"
      printf '7,%.0s' {1..5000}; echo '7]}'; echo '{"record":"end"}'; } >a.jsonl
    cart-view --pack -o a.tokens a.jsonl
    cart-view --pack -z 3 -o z.tokens a.jsonl
    [ "$(stat -c %s z.tokens)" -lt "$(($(stat -c %s a.tokens) / 10))" ]
    cart-view a.tokens >a.txt
    cart-view z.tokens | cmp - a.txt
    cart-view --pack a.txt -o again.tokens
    cmp again.tokens a.tokens
}

@test "two files are listed one after the other" {
    make_listing | cart-view --pack -o a.tokens
    cart_equal "$(cart-view a.tokens a.tokens | grep -c '"record":"end"')" 2
}

@test "an independent reader agrees" {
    cart_need_tool python3
    make_listing | cart-view --pack -o a.tokens
    python3 - <<'PY'
import json, struct, zlib
d = open("a.tokens", "rb").read()
assert d[:8] == b"\x89CART\r\n\x1a"
at, types, payloads = 8, [], []
while at < len(d):
    kind, flags, zero, stored, raw, crc, head_crc = struct.unpack_from("<4sHHQQII", d, at)
    assert zlib.crc32(d[at:at + 28]) == head_crc and flags == 0 and zero == 0 and stored == raw
    payload = d[at + 32:at + 32 + stored]
    assert zlib.crc32(payload) == crc
    types.append(kind)
    payloads.append(payload)
    at += 32 + stored
assert types == [b"HEAD", b"DOC ", b"DOC ", b"END "]
head = json.loads(payloads[0])
assert head["kind"] == "tokens" and head["version"] == [1, 0]
n, = struct.unpack_from("<Q", payloads[1])
assert (8 + n) % 64 == 0
header = json.loads(payloads[1][8:8 + n])
assert json.loads(header["__metadata__"]["record"]) == {
    "bytes": 5, "doc": 0, "path": "a.txt", "sha256": "0123456789abcdef" * 4}
assert header["tokens"] == {"dtype": "I32", "shape": [3], "data_offsets": [0, 12]}
assert struct.unpack_from("<3i", payloads[1], 8 + n) == (1, 2, 3)
records, size = struct.unpack_from("<QQ", payloads[3])
assert records == 2 and size == len(payloads[1]) + len(payloads[2]) and len(payloads[3]) == 32
PY
}

@test "check: whole files pass, in silence" {
    make_listing | cart-view --pack -o a.tokens
    cart-view --check a.tokens - <a.tokens >out 2>err
    [ ! -s out ] && [ ! -s err ]
    cart-view -v --check a.tokens 2>err
    cart_has err "a.tokens: whole and consistent: a cart stream"
}

@test "check: every truncation fails with 3" {
    make_listing | cart-view --pack -o a.tokens
    for n in 0 1 7 8 20 40 100 200 300 400 "$(($(stat -c %s a.tokens) - 1))"; do
        head -c "$n" a.tokens >cut
        cart_must_fail 3 cart-view --check cut 2>err
        cart_equal "$(wc -l <err)" 1
        cart_must_fail 3 cart-view cut >out 2>/dev/null
        cart_must_fail 1 grep -q '"record":"end"' out
    done
}

@test "check: a bad file among good ones decides, and is named" {
    make_listing | cart-view --pack -o a.tokens
    head -c 300 a.tokens >cut
    cart_must_fail 3 cart-view --check a.tokens cut a.tokens 2>err
    cart_has err "cart-view: cut: "
    cart_equal "$(wc -l <err)" 1
    cart_must_fail 5 cart-view --check absent 2>err
}

@test "check: rules between records" {
    make_listing | sed 's/"doc":1/"doc":2/' | cart-view --pack -o a.tokens
    cart_must_fail 3 cart-view --check a.tokens 2>err
    cart_has err "doc: expected 1, found 2"
    make_shard 0 2 1 | cart-view --pack -o a.conv
    cart_must_fail 3 cart-view --check a.conv 2>err
    cart_has err "n 1 after 2: n: expected more than that of the conversation before"
    make_listing | grep -v '"doc"' | cart-view --pack -o none.tokens
    cart_must_fail 3 cart-view --check none.tokens 2>err
    cart_has err "none.tokens: expected documents, found none"
    cart_must_fail 3 cart-view --cat -o x none.tokens
    [ ! -e x ]
}

@test "a record that no program would take is not packed" {
    make_listing | sed 's/"bytes":5/"bytes":-1/' >a.jsonl
    cart_must_fail 3 cart-view --pack -o x a.jsonl 2>err
    cart_has err "a.jsonl: line 2: DOC: doc 0: bytes: expected a whole number from 0 to 4503599627370495, found -1"
    make_shard 5 | sed 's/"chunk":\[0,3\],//' >a.jsonl
    cart_must_fail 3 cart-view --pack -o x a.jsonl 2>err
    cart_has err "a.jsonl: line 3: CONV: n 5: chunk: expected [first, end] with 0 <= first <= end <= 2147483647, found nothing"
    make_listing | sed 's/"model":{[^}]*},//' >a.jsonl
    cart_must_fail 3 cart-view --pack -o x a.jsonl 2>err
    cart_has err "a.jsonl: line 1: HEAD: model: expected fingerprints, found nothing"
    [ ! -e x ]
}

@test "check: the crafted safetensors set" {
    local set=$CART_SHARED/data/safetensors-crafted file bytes verdict why want
    cart_need "$set/MANIFEST.tsv"
    while IFS=$'\t' read -r file bytes verdict why; do
        [ "$verdict" = accept ] && want=0 || want=3
        if [ $want = 0 ]; then cart-view --check "$set/$file"
        else cart_must_fail 3 cart-view --check "$set/$file" 2>err || { echo "$file $bytes $why"; false; }
        fi
    done < <(tail -n +2 "$set/MANIFEST.tsv")
}

@test "check: the crafted GGUF set" {
    local set=$CART_SHARED/data/gguf-crafted file bytes verdict why
    cart_need "$set/MANIFEST.tsv"
    while IFS=$'\t' read -r file bytes verdict why; do
        if [ "$verdict" = accept ]; then cart-view --check "$set/$file"
        else cart_must_fail 3 cart-view --check "$set/$file" 2>err || { echo "$file $bytes $why"; false; }
        fi
    done < <(tail -n +2 "$set/MANIFEST.tsv")
}

@test "cat of two streams is refused, cart-view --cat joins" {
    make_shard 0 1 | cart-view --pack -o a.conv
    make_shard 2 3 | cart-view --pack -o b.conv
    make_shard 0 1 2 3 | cart-view --pack -o whole.conv
    cat a.conv b.conv >raw.conv
    cart_must_fail 3 cart-view --check raw.conv 2>err
    cart_has err "cart-view --cat"
    cart-view --cat -o joined.conv a.conv b.conv
    cmp joined.conv whole.conv
    cart-view --cat a.conv - <b.conv | cmp - whole.conv
    cart-view --pack -z 3 -o whole.z < <(make_shard 0 1 2 3)
    cart-view --cat -z 3 a.conv b.conv | cmp - whole.z
}

@test "--cat: what does not belong together is status 4, and nothing is written" {
    make_shard 0 1 | cart-view --pack -o a.conv
    make_shard 3 | cart-view --pack -o c.conv
    make_shard 2 | sed '2s/\[1,2,3\]}$/[1,2,4]}/' | cart-view --pack -o d.conv
    make_shard 2 | sed '1s/\[\]/[{"tool":"x"}]/' | cart-view --pack -o e.conv
    # A shard of null is none: it does not say that what is missing is another's.
    make_shard 0 1 | sed '1s/"history"/"shard":null,&/' | cart-view --pack -o f.conv
    make_shard 3 | sed '1s/"history"/"shard":null,&/' | cart-view --pack -o g.conv
    for pair in "f.conv g.conv" "f.conv c.conv" "a.conv c.conv" "c.conv a.conv" "a.conv a.conv" "a.conv d.conv" "a.conv e.conv"; do
        # shellcheck disable=SC2086
        cart_must_fail 4 cart-view --cat -o out.conv $pair 2>err
        [ ! -e out.conv ]
    done
    cart-view --cat --allow-gaps -o out.conv a.conv c.conv
    cart-view --check out.conv
}

@test "--cat: a file that breaks rules of its own is refused, as --check refuses it" {
    shard() { make_shard "${@:2}" | sed '1s/"history"/"conversations":6,"shard":'"$1"',&/'; }
    shard '[0,3]' 0 2 | cart-view --pack -o a.conv
    shard '[3,6]' 3 4 | cart-view --pack -o b.conv
    cart-view --cat -o joined.conv a.conv 2> err
    cart_has err 'cart-view: warning: joined.conv: not the whole run: its HEAD says which shard'
    cart-view --cat -o joined.conv a.conv b.conv 2> err
    cart_must_fail 1 grep warning err
    cart-view --check joined.conv
    shard '[0,3]' 0 4 | cart-view --pack -o bad.conv
    shard '[3,6]' 5 | cart-view --pack -o c.conv
    make_listing | sed 's/"doc":1/"doc":2/' | cart-view --pack -o bad.tokens
    make_listing | grep -v '"doc"' | cart-view --pack -o none.tokens
    make_listing | cart-view --pack -o a.tokens
    for pair in 'bad.conv c.conv' 'bad.tokens a.tokens' 'a.tokens none.tokens'; do
        # shellcheck disable=SC2086
        cart_must_fail 3 cart-view --check $pair
        # shellcheck disable=SC2086
        cart_must_fail 3 cart-view --cat -o x $pair 2>err
        [ ! -e x ]
    done
    cart_must_fail 3 cart-view --cat bad.conv c.conv 2>err >x
    cart_has err 'bad.conv: record 2 (CONV): n 4 after 0: n: HEAD does not have it among the conversations of this stream'
    # Each alone may be whole, and the two not belong together.
    make_shard 0 | cart-view --pack -o first.conv
    make_shard 1 | sed 's/"split":"train"/"split":"held-out"/' | cart-view --pack -o second.conv
    cart-view --check first.conv second.conv
    cart_must_fail 4 cart-view --cat -o x first.conv second.conv 2>err
    cart_has err 'second.conv: n 1: split: held-out conversations come before the others'
}

@test "safetensors: a tensor without a name is refused by all that read it" {
    cart_need_tool python3
    python3 - <<'PY'
import struct
header = b'{"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
open("f.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + struct.pack("<f", 2))
PY
    for how in '' --check --data --summary; do
        cart_must_fail 3 cart-view $how f.safetensors 2>err
        cart_equal 'cart-view: f.safetensors: expected a name for each tensor' "$(cat err)"
    done
}

@test "safetensors: listed with data and packed again, the bytes are the same" {
    make_cartridge | cart-view --pack -o c.safetensors
    cart-view --check c.safetensors
    cart-view c.safetensors >short.jsonl
    cart_has short.jsonl '"max":65504,"min":1,"name":"layers.0.v"'
    cart_must_fail 1 grep -q '"data"' short.jsonl
    cart-view --data c.safetensors >long.jsonl
    cart_has long.jsonl '"data":[[[0.1,-0.0]]]'
    cart-view --pack -o again.safetensors long.jsonl
    cmp c.safetensors again.safetensors
    cart_must_fail 3 cart-view --pack -o x short.jsonl 2>err
    cart_has err "--data"
    [ ! -e x ]
}

@test "safetensors: a foreign header survives too" {
    local f
    for f in "$CART_SHARED"/data/safetensors-crafted/ok-*.safetensors \
        "$CART_SHARED"/data/tiny-models/qwen3.golden.safetensors "$CART_TINY"/*.golden.safetensors; do
        [ -e "$f" ] || continue
        cart-view --data "$f" | cart-view --pack | cmp - "$f"
    done
}

@test "safetensors: what is edited beside a foreign header is refused, not dropped" {
    cart_need_tool python3 jq
    python3 - <<'PY'
import json, struct
header = json.dumps({"__metadata__": {"by": "someone"}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                     "y": {"dtype": "U8", "shape": [0], "data_offsets": [4, 4]}}).encode()
open("f.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + struct.pack("<f", 2))
PY
    cart-view --data f.safetensors >f.jsonl
    cart-view --pack f.jsonl 2>err | cmp - f.safetensors
    [ ! -s err ]
    for edit in 'if .metadata then .metadata.by = "me" else . end' 'select(.name != "y")' 'select(.record != "tensor")' \
        'if .header then .header = 5 else . end' 'if .name == "x" then .shape = [1, 1] | .data = [[2]] else . end'; do
        jq -c "$edit" f.jsonl >g.jsonl
        cart_must_fail 3 cart-view --pack -o g.safetensors g.jsonl
        [ ! -e g.safetensors ]
    done
    sed '1s/"by":"someone"/"by":"me"/' f.jsonl >g.jsonl
    cart_must_fail 3 cart-view --pack g.jsonl 2>err
    cart_equal 'cart-view: g.jsonl: line 1: its header is not that of its tensors and metadata: edited? remove header to have a new one made' "$(cat err)"
    sed '1s/"header":".*","metadata"/"metadata"/' g.jsonl | cart-view --pack -o g.safetensors -
    cart-view g.safetensors >listed
    cart_has listed '"metadata":{"by":"me"}'
    cart_must_fail 1 cmp -s f.safetensors g.safetensors
}

@test "safetensors: the format's own library reads what we write" {
    python3 -c 'import safetensors, numpy' 2>/dev/null || skip "machine: no python3 safetensors"
    make_cartridge | cart-view --pack -o c.safetensors
    cart-view --dtype f16 -o h.safetensors c.safetensors
    python3 - <<'PY'
from safetensors import safe_open
for name, dtype in (("c.safetensors", "float32"), ("h.safetensors", "float16")):
    with safe_open(name, "np") as f:
        assert f.metadata()["cart.version"] == "1"
        assert len(list(f.keys())) == 6
        v = f.get_tensor("layers.0.v")
        assert v.shape == (2, 1, 2) and str(v.dtype) == dtype and v[1, 0, 1] == 65504
PY
}

@test "--dtype: rows change their type, and the file says so" {
    make_cartridge | cart-view --pack -o c.safetensors
    cart-view --dtype bf16 -o b.safetensors c.safetensors
    cart-view --dtype f16 c.safetensors >h.safetensors
    cart-view --data h.safetensors >h.jsonl
    cart_has h.jsonl '"cart.dtype":"f16"'
    cart_has h.jsonl '\"options\":{\"dtype\":\"f16\"},\"tool\":\"cart-view\"'
    cart_has h.jsonl '"name":"layers.0.k_sink","shape":[1,1,2],"data":[[[0.09998,-0.0]]]'
    cart-view --data b.safetensors >b.jsonl
    cart_has b.jsonl '"dtype":"BF16","finite":true,"max":4.5,"min":1,"name":"layers.0.k"'
    cart-view --dtype f32 c.safetensors | cmp - c.safetensors
    # The digest is that of the data as they are now.
    cart-view --check h.safetensors b.safetensors
    cart_equal 32 "$(cart-view h.safetensors | jq -r '.metadata["cart.data"] // empty' | tr -d '\n' | wc -c)"
    cp h.safetensors damaged.safetensors
    size=$(wc -c < damaged.safetensors)
    printf '\1' | dd of=damaged.safetensors bs=1 seek=$((size - 5)) conv=notrunc 2> /dev/null
    cart_must_fail 3 cart-view --check damaged.safetensors 2> err
    cart_has err 'damaged.safetensors: data: expected the digest '
    make_cartridge | sed 's/65504/65520/' | cart-view --pack -o big.safetensors
    cart_must_fail 3 cart-view --dtype f16 -o x big.safetensors 2>err
    cart_has err "layers.0.v: value 3, 65520, does not fit F16"
    [ ! -e x ]
    make_listing | cart-view --pack -o a.tokens
    cart_must_fail 3 cart-view --dtype f16 -o x a.tokens 2>err
    cart_has err "expected a cartridge"
}

@test "check: rows must be finite and fit each other" {
    make_cartridge | sed 's/65504/"Infinity"/' | cart-view --pack -o c.safetensors
    cart_must_fail 3 cart-view --check c.safetensors 2>err
    cart_has err "layers.0.v: value 3 is not finite"
    make_cartridge | grep -v 'layers.1.v"' | cart-view --pack -o c.safetensors
    cart_must_fail 3 cart-view --check c.safetensors 2>err
    cart_has err "layers.1.v"
    make_cartridge | sed '/layers.1.[kv]"/s/\[2,1,2\],"data":\[\[\[1,2\]\],/[1,1,2],"data":[/' |
        cart-view --pack -o c.safetensors
    cart_must_fail 3 cart-view --check c.safetensors 2>err
    cart_has err "expected 2 rows"
    make_cartridge | sed '/layers.1.v"/s/\[2,1,2\],"data":.*/[2,2,1],"data":[[[1],[2]],[[3],[4]]]}/' |
        cart-view --pack -o c.safetensors
    cart_must_fail 3 cart-view --check c.safetensors 2>err
    cart_has err "layers.1.v and layers.1.k differ"
    make_cartridge | sed '/layers.1.v"/s/F32/F16/' | cart-view --pack -o c.safetensors
    cart_must_fail 3 cart-view --check c.safetensors 2>err
    cart_has err "layers.1.v: expected F32 as in layers.0.k, found F16"
    make_cartridge | sed '/layers.1.v"/s/layers.1/layers.01/' | cart-view --pack -o c.safetensors
    cart_must_fail 3 cart-view --check c.safetensors 2>err
    cart_has err "layers.1.v: not found"
}

@test "GGUF: keys, tensors, and arrays cut or whole" {
    cart_tiny llama_tied
    cart-view "$CART_MODEL" >short.jsonl
    cart_has short.jsonl '{"record":"key","key":"general.architecture","type":"string","value":"llama"}'
    cart_has short.jsonl '"name":"token_embd.weight"'
    cart-view --data "$CART_MODEL" >long.jsonl
    cart_equal "$(wc -l <short.jsonl)" "$(wc -l <long.jsonl)"
    [ "$(wc -c <long.jsonl)" -gt "$(wc -c <short.jsonl)" ]
    cat "$CART_MODEL" | cart-view | cmp - short.jsonl
    cart-view --check "$CART_MODEL"
    head -c -1 "$CART_MODEL" >cut.gguf
    cart_must_fail 3 cart-view --check cut.gguf
}

@test "foreign and empty input is named" {
    : >empty; echo hello >text; gzip -c text >text.gz; echo '{"a":1}' >a.json
    for f in empty text text.gz a.json; do
        cart_must_fail 3 cart-view "$f" 2>err
        cart_equal "$(wc -l <err)" 1
        cart_must_fail 3 cart-view --cat "$f" >/dev/null 2>err
    done
    cart_must_fail 3 cart-view text.gz 2>err
    cart_has err "text.gz: expected a cart stream, safetensors or GGUF file, found gzip-compressed data"
    cart_must_fail 3 cart-view --pack text 2>err
    cart_has err "text: line 1: expected a JSON object, found plain text"
    cart_must_fail 3 cart-view --pack empty 2>err
    cart_must_fail 3 cart-view --pack a.json 2>err
    cart_must_fail 5 cart-view absent 2>err
    cart_must_fail 3 cart-view . 2>err
}

@test "a listing that was edited packs with a warning, one that was cut does not" {
    make_listing | cart-view --pack -o a.tokens
    cart-view a.tokens >a.jsonl
    sed 's/\[1,2,3\]/[1,2,4]/' a.jsonl | cart-view --pack -o b.tokens 2>err
    cart_has err "warning"
    cart-view --check b.tokens
    sed 's/"digest":"[^"]*"/"digest":5/' a.jsonl | cart-view --pack -o b.tokens 2>err
    cart_has err "warning"
    make_cartridge >c.jsonl
    cart-view --pack c.jsonl >c.safetensors 2>err
    [ ! -s err ]
    cart-view --data c.safetensors | grep -v '"layers.1.v"' | cart-view --pack -o less.safetensors 2>err
    cart_has err "warning: standard input: the listing states other counts or another digest than what was packed: it was edited"
    for edit in '1s/"tensors":8/"tensors":7/' '$s/"tensors":8/"tensors":"8"/'; do
        sed "$edit" c.jsonl | cart-view --pack -o c.safetensors 2>err
        cart_has err "warning"
    done
    sed 's/,"tensors":8//' c.jsonl | cart-view --pack 2>err | cmp - c.safetensors
    [ ! -s err ]
    head -n 3 a.jsonl >cut.jsonl
    cart_must_fail 3 cart-view --pack -o c.tokens cut.jsonl 2>err
    [ ! -e c.tokens ]
}

@test "wrong usage is status 2" {
    make_listing | cart-view --pack -o a.tokens
    cart_must_fail 2 cart-view --pack --check a.tokens
    cart_must_fail 2 cart-view --nonsense
    cart_must_fail 2 cart-view --dtype f8 a.tokens
    cart_must_fail 2 cart-view --data --cat a.tokens
    cart_must_fail 2 cart-view --data a.tokens
    cart_must_fail 2 cart-view --allow-gaps a.tokens
    cart_must_fail 2 cart-view -z 3 a.tokens
    cart_must_fail 2 cart-view --check -o x a.tokens
    cart_must_fail 2 cart-view --pack a b
}

@test "a full disk and a closed pipe" {
    [ -e /dev/full ] || skip "machine: no /dev/full"
    make_listing | cart-view --pack -o a.tokens
    cart_must_fail 5 cart-view a.tokens >/dev/full 2>err
    cart_has err "No space left"
    cart_must_fail 5 cart-view --cat a.tokens >/dev/full 2>err
    run cart_unread cart-view a.tokens
    cart_equal 141 "$status"
    cart_equal '' "$output"
}

@test "--summary says in a few lines what each kind of file is" {
    cart_tiny llama_tied
    make_listing | cart-view --pack -o a.tokens
    cart-view --summary a.tokens >found
    diff - found <<'TEXT'
a.tokens: tokens stream, whole
  documents      2; 3 tokens, 5 bytes
  model          geometry 00, tokenizer 11, template none, weights none
TEXT
    make_shard 0 1 | sed '1s/"history":\[\]/"conversations":3,"history":[{"seed":7,"tool":"cart-x","version":"1.0"}]/' |
        cart-view --pack -o a.conv
    cart-view --summary - <a.conv >found
    diff - found <<'TEXT'
standard input: conversations stream, whole
  documents      1; 3 tokens, 5 bytes
  conversations  2 of 3 planned, 0 held out; 6 tokens, 4 supervised
  model          geometry 00, tokenizer 11, template none, weights none
  history        cart-x 1.0, seed 7
TEXT
    make_cartridge | cart-view --pack -o c.safetensors
    cart-view --summary c.safetensors >found
    diff - found <<'TEXT'
c.safetensors: cartridge
  rows           p 3, 1 of them frozen; 2 layers of 1 heads of 2, F32, 0.00 MiB
  model          geometry 01234567, tokenizer 01234567, template none, weights 01234567
  made           0 steps; f32; corpus unknown
TEXT
    # What is not named as rows are is none.
    make_cartridge | sed -e '1a{"record":"tensor","name":"layers.00.k","dtype":"U8","shape":[1],"data":[1]}' \
        -e '$i{"record":"tensor","name":"layers.x.k_sink","dtype":"U8","shape":[9],"data":[1,2,3,4,5,6,7,8,9]}' \
        -e '$s/8/10/;1s/"tensors":8/"tensors":10/' | cart-view --pack -o d.safetensors
    cart-view --summary d.safetensors >found
    cart_has found 'rows           p 3, 1 of them frozen; 2 layers of 1 heads of 2, F32'
    cp "$CART_MODEL" m.gguf
    cart-view --summary m.gguf c.safetensors >found
    cart_has found 'sizes          4 layers, width 64, context 512'
    # What was made with a model is known by the same digits.
    echo word > d.txt
    cart-tokenize -q -o d.tokens d.txt
    cart-init -q -p 12 -o i.safetensors d.tokens
    cart-view --summary i.safetensors | grep '^  model  *geometry' > line
    grep -qE 'weights [0-9a-f]{8}$' line
    cart_has found "$(cat line)"
    cart_has found 'c.safetensors: cartridge'
    head -c 400 a.tokens >cut
    cart_must_fail 3 cart-view --summary cut >found
    [ ! -s found ]
    cart_must_fail 2 cart-view --summary --check a.tokens 2>err
    cart_equal 'cart-view: --summary and --check: expected one of them' "$(cat err)"
    cart_must_fail 2 cart-view --cat --dtype f16 a.tokens 2>err
    cart_equal 'cart-view: --cat and --dtype: expected one of them' "$(cat err)"
}

@test "of several files a bad one ends its own listing alone, and decides the status" {
    make_listing | cart-view --pack -o a.tokens -
    head -c 300 a.tokens > cut.part
    echo none > text
    for how in '' --summary; do
        cart-view $how a.tokens > one
        cat one one > want
        cart_must_fail 5 cart-view $how absent a.tokens text a.tokens > got 2> err
        cmp want got
        cart_equal 2 "$(wc -l < err)" 'a line for each bad file'
        cart_must_fail 3 cart-view $how text a.tokens absent > got 2> err
        cmp one got
        # A file that is written appears whole or not at all.
        cart_must_fail 3 cart-view $how -o out a.tokens text 2> err
        [ ! -e out ]
        cart_must_fail 5 cart-view $how a.tokens a.tokens > /dev/full 2> err
        cart_equal 1 "$(wc -l < err)" 'a full disk is said once'
    done
    # A stage that is not through is no damage.
    for how in '' --summary --check; do
        cart_must_fail 3 cart-view $how cut.part > got 2> err
        cart_has err '(unfinished: the stage goes on from it with --resume)'
    done
    mv cut.part cut
    cart_must_fail 3 cart-view --check cut 2> err
    cart_must_fail 1 grep resume err
}

@test "a directory where a file is wanted is bad input, and what makes the file is named" {
    cart_tiny llama_tied
    mkdir d
    cart_must_fail 3 cart-selfstudy -n 1 -o x d 2> err
    cart_equal 'cart-selfstudy: d: expected a tokens stream, found a directory (cart-tokenize makes one of documents)' "$(cat err)"
    cart_must_fail 3 cart-train -o x d 2> err
    cart_equal 'cart-train: d: expected a targets stream, found a directory (cart-teacher makes one of conversations)' "$(cat err)"
    cart_must_fail 3 cart-view < d 2> err
    cart_equal 'cart-view: standard input: expected a file, found a directory' "$(cat err)"
    cart_must_fail 3 cart-view --pack d 2> err
    cart_equal 'cart-view: d: expected a file, found a directory' "$(cat err)"
    cart_must_fail 3 cart-ask -c d question 2> err
    cart_equal 'cart-ask: d: expected a file, found a directory' "$(cat err)"
    cart_must_fail 3 cart-tokenize - < d 2> err
    cart_equal 'cart-tokenize: standard input: expected a file, found a directory' "$(cat err)"
    cart_must_fail 3 cart-serve --api-key-file d 2> err
    cart_equal 'cart-serve: d: expected a file, found a directory' "$(cat err)"
    : > file
    cart_must_fail 3 cart-serve -d file 2> err
    cart_equal 'cart-serve: file: expected a directory, found a file' "$(cat err)"
}

# bats test_tags=slow
@test "a file that comes through a pipe has a limit" {
    cart_tiny llama_tied
    cart_must_fail 3 cart-view --check - < <(cat "$CART_MODEL" && head -c 1G /dev/zero) 2> err
    cart_equal 'cart-view: standard input: expected at most 1073741824 bytes through a pipe, found more: name the file' "$(cat err)"
}
