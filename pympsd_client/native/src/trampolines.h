/* A pool of C functions that differ only in their number (trampolines.c). */

#pragma once

#include "frame.h"

#include <stdint.h>

/* `TRAMPOLINES` is a macro because the assembler counts to it, too. */
#define TRAMPOLINES 4096
#define PASS_ON (-2)

/* Return the function with a number, from 0 to TRAMPOLINES - 1. */
HIDDEN void *trampoline(int number);

/* What a trampoline calls if `enter_trampoline` returns PASS_ON, with the arguments that it got. */
extern HIDDEN void *trampoline_originals[TRAMPOLINES];

/* The user of the pool defines this function. Every trampoline calls it with its number, the REGISTERS integer registers of
 * the call and the words of its stack. Returns the result of the call, or PASS_ON. */
HIDDEN KEPT int enter_trampoline(uint64_t number, const uint64_t *registers, const uint64_t *stack);
