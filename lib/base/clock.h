/* Time for progress lines and benches; never part of a result. */
#ifndef CART_BASE_CLOCK_H
#define CART_BASE_CLOCK_H

double cart_clock_now(void); /* seconds, monotonic */
double cart_clock_cpu(void); /* seconds of CPU time of this process */

#endif
