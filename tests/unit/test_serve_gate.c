/* serve/gate.h: framing that two readers could read differently is refused, however the bytes
 * arrive. */
#include "serve/gate.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LIMIT ((size_t)1000)
#define START "POST /v1/x HTTP/1.1\r\nHost: a\r\n"

static void check(const char *data, size_t n, enum cart_gate_verdict want, unsigned status)
{
    struct cart_gate g = {0, NULL};
    enum cart_gate_verdict v = cart_gate_judge(data, n, LIMIT, &g);
    if (v != want || (v == CART_GATE_REFUSE && g.status != status))
        fail_msg("<%.60s>: expected %d %u, found %d %u", data, (int)want, status, (int)v, g.status);
    /* Judged piece by piece, nothing that ends well is refused on the way. */
    for (size_t i = 0; i < n; i++) {
        v = cart_gate_judge(data, i, LIMIT, &g);
        if (v == CART_GATE_REFUSE && want != CART_GATE_REFUSE)
            fail_msg("<%.60s>: refused after %zu bytes: %s", data, i, g.reason);
    }
}

static void test_verdicts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum cart_gate_verdict want;
        unsigned status;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", CART_GATE_PASS, 0},
        {"GET / HTTP/1.0\r\n\r\n", CART_GATE_PASS, 0},
        {"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", CART_GATE_PASS, 0},
        {"GET http://a/b?c HTTP/1.1\r\nHost: a\r\nX:\tq\x80\r\n\r\n", CART_GATE_PASS, 0},
        {"GET / HTTP/1.1\r\nHost: a\r\n", CART_GATE_MORE, 0},
        {"G", CART_GATE_MORE, 0},
        {"", CART_GATE_MORE, 0},
        {START "Content-Length: 5\r\n\r\nhello", CART_GATE_PASS, 0},
        {START "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", CART_GATE_PASS, 0},
        {START "Transfer-Encoding: Chunked \r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n", CART_GATE_PASS, 0},
        {START "Transfer-Encoding: chunked\r\n\r\n3E8\r\nhe", CART_GATE_PASS, 0},
        {"GET / HTTP/1.1\nHost: a\n\n", CART_GATE_REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", CART_GATE_REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", CART_GATE_REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n", CART_GATE_REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", CART_GATE_REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", CART_GATE_REFUSE, 400},
        {"GET / HTTP/2.0\r\n\r\n", CART_GATE_REFUSE, 505},
        {"GET / HTTP/1.2\r\n\r\n", CART_GATE_REFUSE, 505},
        {"GET / http/1.1\r\n\r\n", CART_GATE_REFUSE, 400},
        {"GET /\r\n\r\n", CART_GATE_REFUSE, 400},
        {"GET  / HTTP/1.1\r\n\r\n", CART_GATE_REFUSE, 400},
        {"GET / x HTTP/1.1\r\n\r\n", CART_GATE_REFUSE, 400},
        {"G(T / HTTP/1.1\r\n\r\n", CART_GATE_REFUSE, 400},
        {" GET / HTTP/1.1\r\n\r\n", CART_GATE_REFUSE, 400},
        {"\x16\x03\x01", CART_GATE_REFUSE, 400},
        {START "Content-Length:  5\t\r\n\r\nhello", CART_GATE_PASS, 0},
        {START "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", CART_GATE_REFUSE, 400},
        {START "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", CART_GATE_REFUSE, 400},
        {START "Content-Length: -1\r\n\r\n", CART_GATE_REFUSE, 400},
        {START "Content-Length: 0x5\r\n\r\n", CART_GATE_REFUSE, 400},
        {START "Content-Length: 5 5\r\n\r\n", CART_GATE_REFUSE, 400},
        {START "Content-Length: \r\n\r\n", CART_GATE_REFUSE, 400},
        {START "Content-Length: 9999999999999999\r\n\r\n", CART_GATE_REFUSE, 413},
        {START "Transfer-Encoding: chunked\r\n\r\n5;a=\"b;\\\"c\";d;e=f\r\nhello\r\n",
         CART_GATE_PASS, 0},
        {START "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5;\r\nhello\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5;a=\r\nhello\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\r\nhello\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5;a b\r\nhello\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: gzip, chunked\r\n\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n-1\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n0x5\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n\r\n", CART_GATE_REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n3E9\r\n", CART_GATE_REFUSE, 413},
        {START "Transfer-Encoding: chunked\r\n\r\n100000000000000005\r\n", CART_GATE_REFUSE, 413},
        {START "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n", CART_GATE_REFUSE, 400},
    };
    for (size_t i = 0; i < CART_COUNTOF(cases); i++)
        check(cases[i].text, strlen(cases[i].text), cases[i].want, cases[i].status);
    static const char nul[] = "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n";
    check(nul, sizeof nul - 1, CART_GATE_REFUSE, 400);
}

static void test_endless(void **state)
{
    (void)state;
    char *text = malloc(2 * CART_GATE_HEADER_MAX);
    struct cart_gate g;
    assert_non_null(text);
    memset(text, 'a', 2 * CART_GATE_HEADER_MAX);
    assert_int_equal(cart_gate_judge(text, CART_GATE_HEADER_MAX, LIMIT, &g), CART_GATE_MORE);
    assert_int_equal(cart_gate_judge(text, CART_GATE_HEADER_MAX + 1, LIMIT, &g), CART_GATE_REFUSE);
    assert_int_equal(g.status, 431);
    int n = snprintf(text, 200, START "Transfer-Encoding: chunked\r\n\r\n1;");
    assert_true(n > 0);
    text[n] = 'a'; /* where the string ended */
    assert_int_equal(cart_gate_judge(text, (size_t)n + 200, LIMIT, &g), CART_GATE_PASS);
    assert_int_equal(cart_gate_judge(text, (size_t)n + 300, LIMIT, &g), CART_GATE_REFUSE);
    assert_int_equal(g.status, 400);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_endless),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
