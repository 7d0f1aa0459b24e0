/* The frame of a function in assembler that calls C and then jumps on, with registers and stack as its caller left them.
 *
 * The function's number travels in a register that the calling convention leaves to such code: r11 on x86-64, x17 on
 * aarch64. SAVE_ARGUMENTS makes the frame, keeps the registers that hold arguments and passes the number as the first
 * argument of the C function; RESTORE_ARGUMENTS loads them, and LEAVE removes the frame. LANDING_PAD is what processors with
 * control-flow protection require where an indirect call arrives. The frame pointer and unwind information are kept, so that
 * debuggers and C++ exceptions pass through. */

#pragma once

#define HIDDEN __attribute__((visibility("hidden")))
#define KEPT __attribute__((used)) /* the assembler refers to it; the compiler does not see that */

#if defined(__x86_64__)
enum { REGISTERS = 6 };
#define LANDING_PAD "    endbr64\n"
#define SAVE_ARGUMENTS                                                                                                  \
    "    pushq %rbp\n"                                                                                                  \
    ".cfi_def_cfa_offset 16\n"                                                                                          \
    ".cfi_offset %rbp, -16\n"                                                                                           \
    "    movq %rsp, %rbp\n"                                                                                             \
    ".cfi_def_cfa_register %rbp\n"                                                                                      \
    "    subq $192, %rsp\n" /* 6 words, the number, a word of padding, 8 vector registers of 16 bytes */                \
    "    movq %rdi, (%rsp)\n"                                                                                           \
    "    movq %rsi, 8(%rsp)\n"                                                                                          \
    "    movq %rdx, 16(%rsp)\n"                                                                                         \
    "    movq %rcx, 24(%rsp)\n"                                                                                         \
    "    movq %r8, 32(%rsp)\n"                                                                                          \
    "    movq %r9, 40(%rsp)\n"                                                                                          \
    "    movq %r11, 48(%rsp)\n"                                                                                         \
    "    movaps %xmm0, 64(%rsp)\n"                                                                                      \
    "    movaps %xmm1, 80(%rsp)\n"                                                                                      \
    "    movaps %xmm2, 96(%rsp)\n"                                                                                      \
    "    movaps %xmm3, 112(%rsp)\n"                                                                                     \
    "    movaps %xmm4, 128(%rsp)\n"                                                                                     \
    "    movaps %xmm5, 144(%rsp)\n"                                                                                     \
    "    movaps %xmm6, 160(%rsp)\n"                                                                                     \
    "    movaps %xmm7, 176(%rsp)\n"                                                                                     \
    "    movl %r11d, %edi\n"
#define RESTORE_ARGUMENTS                                                                                               \
    "    movq 0(%rsp), %rdi\n"                                                                                          \
    "    movq 8(%rsp), %rsi\n"                                                                                          \
    "    movq 16(%rsp), %rdx\n"                                                                                         \
    "    movq 24(%rsp), %rcx\n"                                                                                         \
    "    movq 32(%rsp), %r8\n"                                                                                          \
    "    movq 40(%rsp), %r9\n"                                                                                          \
    "    movaps 64(%rsp), %xmm0\n"                                                                                      \
    "    movaps 80(%rsp), %xmm1\n"                                                                                      \
    "    movaps 96(%rsp), %xmm2\n"                                                                                      \
    "    movaps 112(%rsp), %xmm3\n"                                                                                     \
    "    movaps 128(%rsp), %xmm4\n"                                                                                     \
    "    movaps 144(%rsp), %xmm5\n"                                                                                     \
    "    movaps 160(%rsp), %xmm6\n"                                                                                     \
    "    movaps 176(%rsp), %xmm7\n"
#define LEAVE                                                                                                           \
    "    leave\n"                                                                                                       \
    ".cfi_def_cfa %rsp, 8\n"
#elif defined(__aarch64__)
enum { REGISTERS = 8 };
#define LANDING_PAD "    hint #34\n" /* bti c */
#define SAVE_ARGUMENTS                                                                                                  \
    "    stp x29, x30, [sp, #-224]!\n" /* the frame, 8 words, the number, a word of padding, 8 vector registers */      \
    ".cfi_def_cfa_offset 224\n"                                                                                         \
    ".cfi_offset x29, -224\n"                                                                                           \
    ".cfi_offset x30, -216\n"                                                                                           \
    "    mov x29, sp\n"                                                                                                 \
    ".cfi_def_cfa_register x29\n"                                                                                       \
    "    stp x0, x1, [sp, #16]\n"                                                                                       \
    "    stp x2, x3, [sp, #32]\n"                                                                                       \
    "    stp x4, x5, [sp, #48]\n"                                                                                       \
    "    stp x6, x7, [sp, #64]\n"                                                                                       \
    "    str x17, [sp, #80]\n"                                                                                          \
    "    stp q0, q1, [sp, #96]\n"                                                                                       \
    "    stp q2, q3, [sp, #128]\n"                                                                                      \
    "    stp q4, q5, [sp, #160]\n"                                                                                      \
    "    stp q6, q7, [sp, #192]\n"                                                                                      \
    "    mov x0, x17\n"
#define RESTORE_ARGUMENTS                                                                                               \
    "    ldp x0, x1, [sp, #16]\n"                                                                                       \
    "    ldp x2, x3, [sp, #32]\n"                                                                                       \
    "    ldp x4, x5, [sp, #48]\n"                                                                                       \
    "    ldp x6, x7, [sp, #64]\n"                                                                                       \
    "    ldp q0, q1, [sp, #96]\n"                                                                                       \
    "    ldp q2, q3, [sp, #128]\n"                                                                                      \
    "    ldp q4, q5, [sp, #160]\n"                                                                                      \
    "    ldp q6, q7, [sp, #192]\n"
#define LEAVE                                                                                                           \
    "    ldp x29, x30, [sp], #224\n"                                                                                    \
    ".cfi_def_cfa sp, 0\n"                                                                                              \
    ".cfi_restore x29\n"                                                                                                \
    ".cfi_restore x30\n"
#else
#error "written for the calling conventions of x86-64 and aarch64"
#endif
