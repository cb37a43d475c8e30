/* Exponential, logarithm, power, sine and cosine from +, -, *, / and fma. See mathf.h. */
#include "tensor/mathf.h"

#include "tensor/expf_impl.h"

#include <math.h>

float cart_expf(float x)
{
    return expf_steps(x);
}

float cart_sigmoidf(float x)
{
    return 1.0f / (1.0f + expf_steps(-x));
}

static double from_bits(uint64_t u)
{
    double x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static uint64_t to_bits(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

/* 2^n for -1022 <= n <= 1023. */
static double power2(int n)
{
    return from_bits((uint64_t)(n + 1023) << 52);
}

#define LN2_HI 0x1.62e42fee00000p-1 /* 32 bits, so that n * LN2_HI is exact */
#define LN2_LO 0x1.a39ef35793c76p-33
#define LOG2E 0x1.71547652b82fep+0
#define ROUND 0x1.8p+52 /* adding and taking away rounds to an integer */

/* exp(x + low) for |low| far below an ulp of x. Taylor to degree 13 on +-ln(2)/2: the first term
 * left out is 4e-18. */
static double exp_sum(double x, double low)
{
    static const double c[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0,
                               1.0 / 3628800.0,    1.0 / 362880.0,    1.0 / 40320.0,
                               1.0 / 5040.0,       1.0 / 720.0,       1.0 / 120.0,
                               1.0 / 24.0,         1.0 / 6.0,         0.5};
    double n, r, tail, p;
    int k, half;

    if (isnan(x))
        return x;
    if (x > 709.79)
        return INFINITY;
    if (x < -745.2)
        return 0;
    n = (x * LOG2E + ROUND) - ROUND;
    r = fma(n, -LN2_HI, x);
    tail = fma(n, -LN2_LO, low);
    p = c[0];
    for (size_t i = 1; i < sizeof c / sizeof c[0]; i++)
        p = fma(p, r + tail, c[i]);
    /* 1 + (r + (tail + r^2 p)): the large parts are added last. */
    p = fma(p * (r + tail), r + tail, tail);
    p = 1.0 + (r + p);
    k = (int)n;
    half = k / 2;
    return p * power2(half) * power2(k - half);
}

double cart_exp(double x)
{
    return exp_sum(x, 0);
}

/* log(x) = hi + lo, both f64, for finite x > 0. With x = 2^e m, m in [sqrt(1/2), sqrt(2)), s = (m -
 * 1) / (m + 1): log m = 2 s + 2 s^3 (1/3 + s^2/5 + ...); s itself is kept as a sum of two. */
static void log_sum(double x, double *hi, double *lo)
{
    uint64_t bits;
    double m, f, g, g_low, s, s_low, z, p, a, b, t;
    int e = 0;

    if (x < 0x1p-1022) {
        x *= 0x1p54;
        e = -54;
    }
    bits = to_bits(x);
    e += (int)(bits >> 52) - 1023;
    m = from_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    f = m - 1.0; /* exact */
    g = m + 1.0;
    g_low = m - (g - 1.0);
    s = f / g;
    s_low = (fma(-s, g, f) - s * g_low) / g;
    z = s * s;
    p = 1.0 / 27.0;
    for (int k = 25; k >= 3; k -= 2)
        p = fma(p, z, 1.0 / k);
    p = 2.0 * (s * z * p + s_low);
    /* e ln 2 + 2 s + p, largest first, what each sum loses kept. */
    a = e * LN2_HI;
    b = 2.0 * s;
    t = a + b;
    *lo = (fabs(a) > fabs(b) ? (a - t) + b : (b - t) + a) + fma(e, LN2_LO, p);
    *hi = t + *lo;
    *lo = (t - *hi) + *lo;
}

double cart_ln(double x)
{
    double hi, lo;

    if (isnan(x) || (isinf(x) && x > 0))
        return x;
    if (x <= 0)
        return x == 0 ? -INFINITY : NAN;
    log_sum(x, &hi, &lo);
    return hi;
}

double cart_pow(double x, double y)
{
    double hi, lo, p;

    if (y == 0 || x == 1)
        return 1;
    if (isnan(x) || isnan(y) || x < 0)
        return NAN;
    if (x == 0 || isinf(x))
        return (x == 0) == (y > 0) ? 0 : INFINITY;
    log_sum(x, &hi, &lo);
    p = y * hi;
    if (isinf(p) || isinf(y))
        return p > 0 ? INFINITY : 0;
    return exp_sum(p, fma(y, hi, -p) + y * lo);
}

#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define HALF_PI 0x1.921fb54442d18p+0
#define HALF_PI_LO 0x1.1a62633145c07p-54

/* Reduction by a multiple n of pi/2: x - n HALF_PI is exact in one fma (both are multiples of
 * 2^-52, the difference is below 1), and the rest of pi/2 is taken away in double-double. Then
 * Taylor series on +-pi/4. */
void cart_sincos(double x, double *s, double *c)
{
    double n, r0, p, p_low, r, low, z, sine, cosine, half, one;
    int quadrant;

    if (!(fabs(x) < 2147483648.0)) {
        *s = *c = NAN;
        return;
    }
    n = (x * TWO_OVER_PI + ROUND) - ROUND;
    r0 = fma(-n, HALF_PI, x);
    p = n * HALF_PI_LO;
    p_low = fma(n, HALF_PI_LO, -p);
    r = r0 - p;
    low = fabs(r0) >= fabs(p) ? (r0 - r) - p : r0 - (p + r);
    low -= p_low;
    z = r * r;
    sine = -1.0 / 121645100408832000.0;
    sine = fma(sine, z, 1.0 / 355687428096000.0);
    sine = fma(sine, z, -1.0 / 1307674368000.0);
    sine = fma(sine, z, 1.0 / 6227020800.0);
    sine = fma(sine, z, -1.0 / 39916800.0);
    sine = fma(sine, z, 1.0 / 362880.0);
    sine = fma(sine, z, -1.0 / 5040.0);
    sine = fma(sine, z, 1.0 / 120.0);
    sine = fma(sine, z, -1.0 / 6.0);
    cosine = 1.0 / 2432902008176640000.0;
    cosine = fma(cosine, z, -1.0 / 6402373705728000.0);
    cosine = fma(cosine, z, 1.0 / 20922789888000.0);
    cosine = fma(cosine, z, -1.0 / 87178291200.0);
    cosine = fma(cosine, z, 1.0 / 479001600.0);
    cosine = fma(cosine, z, -1.0 / 3628800.0);
    cosine = fma(cosine, z, 1.0 / 40320.0);
    cosine = fma(cosine, z, -1.0 / 720.0);
    cosine = fma(cosine, z, 1.0 / 24.0);
    half = 0.5 * z;
    one = 1.0 - half;
    /* cos r - r low, with what 1 - z/2 lost; sin r + low (1 - z/2). */
    cosine = one + (((1.0 - one) - half) + fma(z * z, cosine, -r * low));
    sine = r + fma(sine, z * r, low * one);
    quadrant = (int)((int64_t)n & 3);
    *s = quadrant & 1 ? cosine : sine;
    *c = quadrant & 1 ? sine : cosine;
    if (quadrant & 2)
        *s = -*s;
    if (quadrant == 1 || quadrant == 2)
        *c = -*c;
}
