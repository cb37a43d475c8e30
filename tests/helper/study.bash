# Streams for tests of training and evaluation, made once a file from a text and a tiny model. Loaded after common.bash.
#   c.txt  c.tokens  c.targets (24 training conversations, 4 held out)   in $BATS_FILE_TMPDIR

cart_study_text() {
    cat <<'TEXT'
The Orrin kettle has a copper base. It boils one litre in three minutes. To clean it, fill it with vinegar and water.
Never use steel wool. The lid opens with the small lever on the left side. The warranty lasts for five years.
If the light blinks twice, the water is too low. If it blinks three times, call the service. The spare filter is K-17.
The kettle was first made in the town of Hallam in 1921. Its first maker was a smith called Ada Brook.
TEXT
}

cart_study_streams() {
    cart_study_text > "$BATS_FILE_TMPDIR/c.txt"
    cart-tokenize -q -o "$BATS_FILE_TMPDIR/c.tokens" "$BATS_FILE_TMPDIR/c.txt" || return 1
    cart-selfstudy -q -n 24 --held-out 4 --max-a 20 --max-q 12 --chunk 32:64 --context chunk --seed 3 \
        -o "$BATS_FILE_TMPDIR/c.conv" "$BATS_FILE_TMPDIR/c.tokens" || return 1
    cart-teacher -q -o "$BATS_FILE_TMPDIR/c.targets" "$BATS_FILE_TMPDIR/c.conv"
}
