/* The exported functions of a shared library for native programs: each is a jump through a table.
 *
 * A program is linked with functions by their names, or asks dlsym for them. The function behind a name is found only
 * when the program calls it: then `resolve_stub` fills the table. From then on a call costs one jump.
 *
 *     cuMemAlloc_v2:  number <- 302; jump to stub_table[302]
 *         at first    resolve_body: saves the registers of arguments, calls resolve_stub(302), restores them, and
 *                     jumps to what that returned, which sees registers and stack exactly as the caller left them
 *         later       a C function over a Python function (../entry_points.c), or any other
 *
 * One file of a library defines STUBS as its table of functions, in which FUNCTION(name, version, parameters) has a stub
 * and OWN(name, version, parameters) is the library's own code, and includes this file. It gets
 *
 *     stub_count, stub_prototypes[]   one "name(types of parameters)" for each stub, in the order of the table
 *     stub_table[]                    what stubs jump to
 *
 * and defines `resolve_stub`. The number travels in r11 on x86-64 and x17 on aarch64, which calls leave to such code. */

#pragma once

#include "frame.h"

#include <stdint.h>

/* Return the address of the function behind a stub; a stub calls it while its entry is still resolve_body. */
HIDDEN KEPT void *resolve_stub(uint64_t number);

#define OWN(name, version, parameters)
#define PER_THREAD(name, suffix, version, parameters) /* and the one for per-thread default streams, since CUDA 7 */    \
    FUNCTION(name, version, parameters)                                                                                 \
    FUNCTION(name##suffix, (version) < 7000 ? 7000 : (version), parameters)
#define VERSION_2(name, version, since, parameters) /* and its second version, which has the same parameters */         \
    FUNCTION(name, version, parameters)                                                                                 \
    FUNCTION(name##_v2, since, parameters)

#define FUNCTION(name, version, parameters) #name "(" parameters ")",
static const char *const stub_prototypes[] = {
#include STUBS
};
#undef FUNCTION
enum { stub_count = sizeof stub_prototypes / sizeof stub_prototypes[0] };

extern HIDDEN char resolve_body[];
HIDDEN KEPT void *stub_table[stub_count] = {[0 ... stub_count - 1] = resolve_body};

#if defined(__x86_64__)
#define JUMP_THROUGH_TABLE                                                                                              \
    "    movl $number, %r11d\n"                                                                                         \
    "    jmp *(stub_table + 8 * number)(%rip)\n"
#define RESOLVE                                                                                                         \
    "    call resolve_stub\n"                                                                                           \
    "    movq %rax, %r11\n"                                                                                             \
    RESTORE_ARGUMENTS                                                                                                   \
    LEAVE                                                                                                               \
    "    jmp *%r11\n"
#else
#define JUMP_THROUGH_TABLE                                                                                              \
    "    movz w17, #number\n"                                                                                           \
    "    adrp x16, stub_table + 8 * number\n"                                                                           \
    "    ldr x16, [x16, :lo12:stub_table + 8 * number]\n"                                                               \
    "    br x16\n"
#define RESOLVE                                                                                                         \
    "    bl resolve_stub\n"                                                                                             \
    "    mov x16, x0\n"                                                                                                 \
    RESTORE_ARGUMENTS                                                                                                   \
    LEAVE                                                                                                               \
    "    br x16\n"
#endif
#define FUNCTION(name, version, parameters)                                                                             \
    ".globl " #name "\n"                                                                                                \
    ".type " #name ", %function\n"                                                                                      \
    ".p2align 4\n" #name ":\n"                                                                                          \
    LANDING_PAD                                                                                                         \
    JUMP_THROUGH_TABLE                                                                                                  \
    ".size " #name ", . - " #name "\n"                                                                                  \
    ".set number, number + 1\n"
__asm__(".pushsection .text\n"
        ".cfi_startproc\n"
        ".set number, 0\n"
#include STUBS
        ".cfi_endproc\n"
        ".hidden resolve_body\n"
        ".globl resolve_body\n"
        ".p2align 4\n"
        "resolve_body:\n"
        ".cfi_startproc\n"
        LANDING_PAD
        SAVE_ARGUMENTS
        RESOLVE
        ".cfi_endproc\n"
        ".popsection\n");
#undef FUNCTION
#undef OWN
__asm__(".section .note.GNU-stack, \"\", %progbits\n.text\n");
