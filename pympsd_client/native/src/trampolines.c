/* A pool of C functions that differ only in their number.
 *
 * A program calls functions of the CUDA libraries by their addresses, so each function needs an address of its own. All do
 * the same: they save the registers with arguments and call `enter_trampoline` with the number of the function. Then they
 * return its result or, for PASS_ON, restore the registers and jump to the original function, which sees the registers and
 * the stack exactly as the caller left them.
 *
 *     trampoline 7:  number <- 7; jump to the body
 *     body:          save registers; enter_trampoline(7, registers, stack)
 *                        PASS_ON         -> restore registers; jump to trampoline_originals[7]
 *                        anything else   -> return it
 *
 * A trampoline is 16 bytes of assembler. The same functions, written in C by a macro, took 30 s to compile.
 *
 * Trampolines begin with the landing pad that processors with control-flow protection require; frame.h has the rest. */

#include "trampolines.h"

#define TEXT(value) #value
#define NUMBER(value) TEXT(value)

KEPT void *trampoline_originals[TRAMPOLINES];
extern HIDDEN char trampolines_begin[];

void *trampoline(int number) {
    return trampolines_begin + 16 * number;
}

#if defined(__x86_64__)
#define JUMP_TO_BODY                                                                                                    \
    "    movl $number, %r11d\n"                                                                                         \
    "    jmp trampoline_body\n"
#define ENTER                                                                                                           \
    "    movq %rsp, %rsi\n"                                                                                             \
    "    leaq 16(%rbp), %rdx\n" /* above the saved frame pointer and the return address */                              \
    "    call enter_trampoline\n"                                                                                       \
    "    cmpl $" NUMBER(PASS_ON) ", %eax\n"                                                                             \
    "    jne 1f\n"
#define JUMP_TO_ORIGINAL                                                                                                \
    RESTORE_ARGUMENTS                                                                                                   \
    "    movq 48(%rsp), %r11\n"                                                                                         \
    "    leaq trampoline_originals(%rip), %r10\n"                                                                       \
    "    movq (%r10, %r11, 8), %r11\n"                                                                                  \
    ".cfi_remember_state\n"                                                                                             \
    LEAVE                                                                                                               \
    "    jmp *%r11\n"
#else
#define JUMP_TO_BODY                                                                                                    \
    "    movz w17, #number\n"                                                                                           \
    "    b trampoline_body\n"
#define ENTER                                                                                                           \
    "    add x1, sp, #16\n"                                                                                             \
    "    add x2, sp, #224\n"                                                                                            \
    "    bl enter_trampoline\n"                                                                                         \
    "    cmp w0, #" NUMBER(PASS_ON) "\n"                                                                                \
    "    b.ne 1f\n"
#define JUMP_TO_ORIGINAL                                                                                                \
    "    ldr x16, [sp, #80]\n"                                                                                          \
    "    adrp x17, trampoline_originals\n"                                                                              \
    "    add x17, x17, :lo12:trampoline_originals\n"                                                                    \
    "    ldr x16, [x17, x16, lsl #3]\n"                                                                                 \
    RESTORE_ARGUMENTS                                                                                                   \
    ".cfi_remember_state\n"                                                                                             \
    LEAVE                                                                                                               \
    "    br x16\n" /* by x16, which may enter at a landing pad for calls */
#endif
__asm__(".pushsection .text\n"
        ".hidden trampolines_begin\n"
        ".globl trampolines_begin\n"
        ".p2align 4\n"
        "trampolines_begin:\n"
        ".cfi_startproc\n"
        ".set number, 0\n"
        ".rept " NUMBER(TRAMPOLINES) "\n"
        ".p2align 4\n"
        LANDING_PAD
        JUMP_TO_BODY
        ".set number, number + 1\n"
        ".endr\n"
        ".cfi_endproc\n"
        ".p2align 4\n"
        "trampoline_body:\n"
        ".cfi_startproc\n"
        SAVE_ARGUMENTS
        ENTER
        JUMP_TO_ORIGINAL
        ".cfi_restore_state\n"
        "1:\n"
        LEAVE
        "    ret\n"
        ".cfi_endproc\n"
        ".popsection\n");
__asm__(".section .note.GNU-stack, \"\", %progbits\n.text\n");
