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

enum verdict { MORE, PASS, REFUSE };

/* All that comes, in one go from where the gate stands each time. PASS: whole requests and nothing
 * behind them. */
static enum verdict judge(const char *data, size_t n, struct cart_gate *g)
{
    *g = (struct cart_gate){.at = CART_GATE_HEADER};
    for (size_t at = 0;;) {
        int64_t k = at < n ? cart_gate_next(g, data + at, n - at, LIMIT) : 0;
        if (k < 0)
            return REFUSE;
        if (at == n && at > 0 && g->at == CART_GATE_HEADER)
            return PASS;
        if (k == 0 || (uint64_t)k > n - at)
            return MORE;
        at += (size_t)k;
    }
}

static void check(const char *data, size_t n, enum verdict want, unsigned status)
{
    struct cart_gate g;
    enum verdict v = judge(data, n, &g);
    if (v != want || (v == REFUSE && g.status != status))
        fail_msg("<%.60s>: expected %d %u, found %d %u", data, (int)want, status, (int)v, g.status);
    /* Judged piece by piece, nothing that ends well is refused on the way. */
    for (size_t i = 0; i < n; i++) {
        if (judge(data, i, &g) == REFUSE && want != REFUSE)
            fail_msg("<%.60s>: refused after %zu bytes: %s", data, i, g.reason);
    }
    /* The same behind a request that is fine: with a body, without one, and in chunks. */
    static const char *const before[] = {
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n", START "Content-Length: 3\r\n\r\nabc",
        START "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"};
    for (size_t i = 0; i < CART_COUNTOF(before); i++) {
        size_t k = strlen(before[i]);
        char *both = malloc(k + n);
        assert_non_null(both);
        memcpy(both, before[i], k);
        memcpy(both + k, data, n);
        v = judge(both, k + n, &g);
        free(both);
        if (n > 0 && (v != want || (v == REFUSE && g.status != status)))
            fail_msg("<%.60s> as a second request: expected %d %u, found %d %u", data, (int)want,
                     status, (int)v, g.status);
    }
}

static void test_verdicts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum verdict want;
        unsigned status;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", PASS, 0},
        {"GET / HTTP/1.0\r\n\r\n", PASS, 0},
        {"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", PASS, 0},
        {"GET http://a/b?c HTTP/1.1\r\nHost: a\r\nX:\tq\x80\r\n\r\n", PASS, 0},
        {"GET / HTTP/1.1\r\nHost: a\r\n", MORE, 0},
        {"G", MORE, 0},
        {"", MORE, 0},
        {START "Content-Length: 5\r\n\r\nhello", PASS, 0},
        {START "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", PASS, 0},
        {START "Transfer-Encoding: Chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n", PASS, 0},
        {START "Transfer-Encoding: chunked \r\n\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n3E8\r\nhe", MORE, 0},
        {START "Content-Length: 5\r\n\r\nhell", MORE, 0},
        {"GET / HTTP/1.1\nHost: a\n\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/2.0\r\n\r\n", REFUSE, 505},
        {"GET / HTTP/1.2\r\n\r\n", REFUSE, 505},
        {"GET / http/1.1\r\n\r\n", REFUSE, 400},
        {"GET /\r\n\r\n", REFUSE, 400},
        {"GET  / HTTP/1.1\r\n\r\n", REFUSE, 400},
        {"GET / x HTTP/1.1\r\n\r\n", REFUSE, 400},
        {"G(T / HTTP/1.1\r\n\r\n", REFUSE, 400},
        {" GET / HTTP/1.1\r\n\r\n", REFUSE, 400},
        {"\x16\x03\x01", REFUSE, 400},
        {START "Content-Length:  5\r\n\r\nhello", PASS, 0},
        {START "Content-Length: 5\t\r\n\r\nhello", REFUSE, 400},
        {START "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", REFUSE, 400},
        {START "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", REFUSE, 400},
        {START "Content-Length: -1\r\n\r\n", REFUSE, 400},
        {START "Content-Length: 0x5\r\n\r\n", REFUSE, 400},
        {START "Content-Length: 5 5\r\n\r\n", REFUSE, 400},
        {START "Content-Length: \r\n\r\n", REFUSE, 400},
        {START "Content-Length: 9999999999999999\r\n\r\n", REFUSE, 413},
        {START "Transfer-Encoding: chunked\r\n\r\n5;a=\"b;\\\"c\";d;e=f\r\nhello\r\n", MORE, 0},
        {START "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5;\r\nhello\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5;a=\r\nhello\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5;a=\"b\r\nhello\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5;a b\r\nhello\r\n", REFUSE, 400},
        {START "Transfer-Encoding: gzip, chunked\r\n\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n-1\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n0x5\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n3E9\r\n", REFUSE, 413},
        {START "Transfer-Encoding: chunked\r\n\r\n100000000000000005\r\n", REFUSE, 413},
        {START "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n-1\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n", REFUSE,
         400},
        {START "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n", REFUSE, 400},
        {START "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n", PASS, 0},
        {"GET / HTTP/1.1\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost:\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a \r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", REFUSE, 400},
        {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", PASS, 0},
        {"GET / HTTP/1.1\r\nHost: a_b.c-d:80\r\n\r\n", PASS, 0},
        {"GET /v1/models/m%00x HTTP/1.1\r\nHost: a\r\n\r\n", REFUSE, 400},
        {"GET /v1/models/m%2500 HTTP/1.1\r\nHost: a\r\n\r\n", PASS, 0},
    };
    for (size_t i = 0; i < CART_COUNTOF(cases); i++)
        check(cases[i].text, strlen(cases[i].text), cases[i].want, cases[i].status);
    static const char nul[] = "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n";
    check(nul, sizeof nul - 1, REFUSE, 400);
}

static void test_endless(void **state)
{
    (void)state;
    char *text = malloc(2 * CART_GATE_HEADER_MAX);
    struct cart_gate g;
    assert_non_null(text);
    memset(text, 'a', 2 * CART_GATE_HEADER_MAX);
    assert_int_equal(judge(text, CART_GATE_HEADER_MAX, &g), MORE);
    assert_int_equal(judge(text, CART_GATE_HEADER_MAX + 1, &g), REFUSE);
    assert_int_equal(g.status, 431);
    int n = snprintf(text, 200, START "Transfer-Encoding: chunked\r\n\r\n1;");
    assert_true(n > 0);
    text[n] = 'a'; /* where the string ended */
    assert_int_equal(judge(text, (size_t)n + 200, &g), MORE);
    assert_int_equal(judge(text, (size_t)n + 300, &g), REFUSE);
    assert_int_equal(g.status, 400);
    free(text);
}

/* A header that libmicrohttpd would have no memory for does not reach it; nor does a trailer. */
static void test_fields(void **state)
{
    (void)state;
    static const char *const starts[] = {"GET / HTTP/1.1\r\nHost: a\r\n",
                                         "GET / HTTP/1.1\r\nHost: a\r\nCookie: a",
                                         START "Transfer-Encoding: chunked\r\n\r\n0\r\n"};
    static const char *const one[] = {"a:b\r\n", ";a", "a:b\r\n"};
    static const char *const ends[] = {"\r\n", "\r\n\r\n", "\r\n"};
    static const size_t most[] = {CART_GATE_FIELDS_MAX - 1, CART_GATE_FIELDS_MAX - 2,
                                  CART_GATE_FIELDS_MAX};
    for (size_t i = 0; i < CART_COUNTOF(starts); i++) {
        for (size_t more = 0; more < 2; more++) {
            char text[4096];
            struct cart_gate g;
            int n = snprintf(text, sizeof text, "%s", starts[i]);
            for (size_t k = 0; k < most[i] + more; k++)
                n += snprintf(text + n, sizeof text - (size_t)n, "%s", one[i]);
            n += snprintf(text + n, sizeof text - (size_t)n, "%s", ends[i]);
            assert_int_equal(judge(text, (size_t)n, &g), more ? REFUSE : PASS);
            assert_int_equal(g.status, more ? 431 : 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_endless),
        cmocka_unit_test(test_fields),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
