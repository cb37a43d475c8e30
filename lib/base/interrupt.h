/* INT and TERM: the first asks the running loop to stop at its next safe point, the second kills at
 * once. */
#ifndef CART_BASE_INTERRUPT_H
#define CART_BASE_INTERRUPT_H

#include "base/attr.h"

void cart_interrupt_install(void); /* for tools with state to save; the others die by the signal */
/* The work that a signal could cut short is done: from here on, as in what is written at the end,
 * each kills at once, unless it is ignored. */
void cart_interrupt_release(void);
bool cart_interrupted(void);
/* A descriptor that can be read from once a signal has come, to be polled beside what one waits
 * for; nobody reads from it. -1: no signal was ever caught here. */
int cart_interrupt_fd(void);
/* Restores the action of before and raises the signal that came, so that the shell sees it; returns
 * only if none came. */
void cart_interrupt_die(void);

#endif
