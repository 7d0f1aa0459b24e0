/* A pool of C functions that differ only in their number.
 *
 * A program calls functions of the CUDA libraries by their addresses, so each function needs an address of its own. All do
 * the same: save the registers that hold arguments, call `enter_trampoline` with the number of the function, and then
 * either return what that returned or, for PASS_ON, restore the registers and jump to the original function, which sees the
 * registers and the stack exactly as the caller left them.
 *
 *     trampoline 7:  number <- 7; jump to the body
 *     body:          save registers; enter_trampoline(7, registers, stack)
 *                        PASS_ON         -> restore registers; jump to trampoline_originals[7]
 *                        anything else   -> return it
 *
 * A trampoline is 16 bytes of assembler. The same written as C functions by a macro took 30 s to compile.
 *
 * The number travels in a register that the calling convention leaves to such code: r11 on x86-64, x16 on aarch64. Both
 * begin with the landing pad that processors with control-flow protection require. The body keeps the frame pointer and
 * states its unwind information, so that debuggers and C++ exceptions pass through it. */

#include "trampolines.h"

#define TEXT(value) #value
#define NUMBER(value) TEXT(value)

KEPT void *trampoline_originals[TRAMPOLINES];
extern HIDDEN char trampolines_begin[];

void *trampoline(int number) {
    return trampolines_begin + 16 * number;
}

#if defined(__x86_64__)
__asm__(".pushsection .text\n"
        ".hidden trampolines_begin\n"
        ".globl trampolines_begin\n"
        ".p2align 4\n"
        "trampolines_begin:\n"
        ".cfi_startproc\n"
        ".set number, 0\n"
        ".rept " NUMBER(TRAMPOLINES) "\n"
        ".p2align 4\n"
        "    endbr64\n"
        "    movl $number, %r11d\n"
        "    jmp trampoline_body\n"
        ".set number, number + 1\n"
        ".endr\n"
        ".cfi_endproc\n"
        ".p2align 4\n"
        "trampoline_body:\n"
        ".cfi_startproc\n"
        "    pushq %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "    movq %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "    subq $192, %rsp\n" /* 6 words, the number, a word of padding, 8 vector registers of 16 bytes */
        "    movq %rdi, (%rsp)\n"
        "    movq %rsi, 8(%rsp)\n"
        "    movq %rdx, 16(%rsp)\n"
        "    movq %rcx, 24(%rsp)\n"
        "    movq %r8, 32(%rsp)\n"
        "    movq %r9, 40(%rsp)\n"
        "    movq %r11, 48(%rsp)\n"
        "    movaps %xmm0, 64(%rsp)\n"
        "    movaps %xmm1, 80(%rsp)\n"
        "    movaps %xmm2, 96(%rsp)\n"
        "    movaps %xmm3, 112(%rsp)\n"
        "    movaps %xmm4, 128(%rsp)\n"
        "    movaps %xmm5, 144(%rsp)\n"
        "    movaps %xmm6, 160(%rsp)\n"
        "    movaps %xmm7, 176(%rsp)\n"
        "    movl %r11d, %edi\n"
        "    movq %rsp, %rsi\n"
        "    leaq 16(%rbp), %rdx\n" /* above the saved frame pointer and the return address */
        "    call enter_trampoline\n"
        "    cmpl $" NUMBER(PASS_ON) ", %eax\n"
        "    jne 1f\n"
        "    movq (%rsp), %rdi\n"
        "    movq 8(%rsp), %rsi\n"
        "    movq 16(%rsp), %rdx\n"
        "    movq 24(%rsp), %rcx\n"
        "    movq 32(%rsp), %r8\n"
        "    movq 40(%rsp), %r9\n"
        "    movaps 64(%rsp), %xmm0\n"
        "    movaps 80(%rsp), %xmm1\n"
        "    movaps 96(%rsp), %xmm2\n"
        "    movaps 112(%rsp), %xmm3\n"
        "    movaps 128(%rsp), %xmm4\n"
        "    movaps 144(%rsp), %xmm5\n"
        "    movaps 160(%rsp), %xmm6\n"
        "    movaps 176(%rsp), %xmm7\n"
        "    movq 48(%rsp), %r11\n"
        "    leaq trampoline_originals(%rip), %r10\n"
        "    movq (%r10, %r11, 8), %r11\n"
        "    leave\n"
        ".cfi_remember_state\n"
        ".cfi_def_cfa %rsp, 8\n"
        "    jmp *%r11\n"
        ".cfi_restore_state\n"
        "1:\n"
        "    leave\n"
        ".cfi_def_cfa %rsp, 8\n"
        "    ret\n"
        ".cfi_endproc\n"
        ".popsection\n");
#else
__asm__(".pushsection .text\n"
        ".hidden trampolines_begin\n"
        ".globl trampolines_begin\n"
        ".p2align 4\n"
        "trampolines_begin:\n"
        ".cfi_startproc\n"
        ".set number, 0\n"
        ".rept " NUMBER(TRAMPOLINES) "\n"
        ".p2align 4\n"
        "    hint #34\n" /* bti c */
        "    movz w16, #number\n"
        "    b trampoline_body\n"
        ".set number, number + 1\n"
        ".endr\n"
        ".cfi_endproc\n"
        ".p2align 4\n"
        "trampoline_body:\n"
        ".cfi_startproc\n"
        "    stp x29, x30, [sp, #-224]!\n" /* the frame, 8 words, the number, a word of padding, 8 vector registers */
        ".cfi_def_cfa_offset 224\n"
        ".cfi_offset x29, -224\n"
        ".cfi_offset x30, -216\n"
        "    mov x29, sp\n"
        ".cfi_def_cfa_register x29\n"
        "    stp x0, x1, [sp, #16]\n"
        "    stp x2, x3, [sp, #32]\n"
        "    stp x4, x5, [sp, #48]\n"
        "    stp x6, x7, [sp, #64]\n"
        "    str x16, [sp, #80]\n"
        "    stp q0, q1, [sp, #96]\n"
        "    stp q2, q3, [sp, #128]\n"
        "    stp q4, q5, [sp, #160]\n"
        "    stp q6, q7, [sp, #192]\n"
        "    mov x0, x16\n"
        "    add x1, sp, #16\n"
        "    add x2, sp, #224\n"
        "    bl enter_trampoline\n"
        "    cmp w0, #" NUMBER(PASS_ON) "\n"
        "    b.ne 1f\n"
        "    ldr x16, [sp, #80]\n"
        "    adrp x17, trampoline_originals\n"
        "    add x17, x17, :lo12:trampoline_originals\n"
        "    ldr x16, [x17, x16, lsl #3]\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x2, x3, [sp, #32]\n"
        "    ldp x4, x5, [sp, #48]\n"
        "    ldp x6, x7, [sp, #64]\n"
        "    ldp q0, q1, [sp, #96]\n"
        "    ldp q2, q3, [sp, #128]\n"
        "    ldp q4, q5, [sp, #160]\n"
        "    ldp q6, q7, [sp, #192]\n"
        "    ldp x29, x30, [sp], #224\n"
        ".cfi_remember_state\n"
        ".cfi_def_cfa sp, 0\n"
        ".cfi_restore x29\n"
        ".cfi_restore x30\n"
        "    br x16\n" /* by x16: allowed to enter at a landing pad for calls */
        ".cfi_restore_state\n"
        "1:\n"
        "    ldp x29, x30, [sp], #224\n"
        ".cfi_def_cfa sp, 0\n"
        ".cfi_restore x29\n"
        ".cfi_restore x30\n"
        "    ret\n"
        ".cfi_endproc\n"
        ".popsection\n");
#endif
__asm__(".section .note.GNU-stack, \"\", %progbits\n.text\n");
