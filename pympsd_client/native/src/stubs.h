/* The exported functions of a shared library for native programs: a jump through a table each.
 *
 * A program is linked with functions by their names, or asks dlsym for them. What stands behind a name is known later,
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

#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "written for the calling conventions of x86-64 and aarch64"
#endif

#define HIDDEN __attribute__((visibility("hidden")))
#define KEPT __attribute__((used)) /* the assembler refers to it; the compiler does not see that */

/* Return the address of the function behind a stub; called by a stub whose entry of `stub_table` is as at first. */
HIDDEN KEPT void *resolve_stub(uint64_t number);

#define OWN(name, version, parameters)

#define FUNCTION(name, version, parameters) #name "(" parameters ")",
static const char *const stub_prototypes[] = {
#include STUBS
};
#undef FUNCTION
enum { stub_count = sizeof stub_prototypes / sizeof stub_prototypes[0] };

extern HIDDEN char resolve_body[];
HIDDEN KEPT void *stub_table[stub_count] = {[0 ... stub_count - 1] = resolve_body};

#if defined(__x86_64__)
#define FUNCTION(name, version, parameters)                                                                             \
    ".globl " #name "\n"                                                                                                \
    ".type " #name ", @function\n"                                                                                      \
    ".p2align 4\n" #name ":\n"                                                                                          \
    "    endbr64\n"                                                                                                     \
    "    movl $number, %r11d\n"                                                                                         \
    "    jmp *(stub_table + 8 * number)(%rip)\n"                                                                        \
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
        "    endbr64\n"
        "    pushq %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "    movq %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "    subq $176, %rsp\n" /* 6 words, 8 vector registers of 16 bytes */
        "    movq %rdi, (%rsp)\n"
        "    movq %rsi, 8(%rsp)\n"
        "    movq %rdx, 16(%rsp)\n"
        "    movq %rcx, 24(%rsp)\n"
        "    movq %r8, 32(%rsp)\n"
        "    movq %r9, 40(%rsp)\n"
        "    movaps %xmm0, 48(%rsp)\n"
        "    movaps %xmm1, 64(%rsp)\n"
        "    movaps %xmm2, 80(%rsp)\n"
        "    movaps %xmm3, 96(%rsp)\n"
        "    movaps %xmm4, 112(%rsp)\n"
        "    movaps %xmm5, 128(%rsp)\n"
        "    movaps %xmm6, 144(%rsp)\n"
        "    movaps %xmm7, 160(%rsp)\n"
        "    movl %r11d, %edi\n"
        "    call resolve_stub\n"
        "    movq %rax, %r11\n"
        "    movq (%rsp), %rdi\n"
        "    movq 8(%rsp), %rsi\n"
        "    movq 16(%rsp), %rdx\n"
        "    movq 24(%rsp), %rcx\n"
        "    movq 32(%rsp), %r8\n"
        "    movq 40(%rsp), %r9\n"
        "    movaps 48(%rsp), %xmm0\n"
        "    movaps 64(%rsp), %xmm1\n"
        "    movaps 80(%rsp), %xmm2\n"
        "    movaps 96(%rsp), %xmm3\n"
        "    movaps 112(%rsp), %xmm4\n"
        "    movaps 128(%rsp), %xmm5\n"
        "    movaps 144(%rsp), %xmm6\n"
        "    movaps 160(%rsp), %xmm7\n"
        "    leave\n"
        ".cfi_def_cfa %rsp, 8\n"
        "    jmp *%r11\n"
        ".cfi_endproc\n"
        ".popsection\n");
#else
#define FUNCTION(name, version, parameters)                                                                             \
    ".globl " #name "\n"                                                                                                \
    ".type " #name ", %function\n"                                                                                      \
    ".p2align 4\n" #name ":\n"                                                                                          \
    "    hint #34\n" /* bti c */                                                                                        \
    "    movz w17, #number\n"                                                                                           \
    "    adrp x16, stub_table + 8 * number\n"                                                                           \
    "    ldr x16, [x16, :lo12:stub_table + 8 * number]\n"                                                               \
    "    br x16\n"                                                                                                      \
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
        "    hint #34\n"
        "    stp x29, x30, [sp, #-208]!\n" /* the frame, 8 words, 8 vector registers */
        ".cfi_def_cfa_offset 208\n"
        ".cfi_offset x29, -208\n"
        ".cfi_offset x30, -200\n"
        "    mov x29, sp\n"
        ".cfi_def_cfa_register x29\n"
        "    stp x0, x1, [sp, #16]\n"
        "    stp x2, x3, [sp, #32]\n"
        "    stp x4, x5, [sp, #48]\n"
        "    stp x6, x7, [sp, #64]\n"
        "    stp q0, q1, [sp, #80]\n"
        "    stp q2, q3, [sp, #112]\n"
        "    stp q4, q5, [sp, #144]\n"
        "    stp q6, q7, [sp, #176]\n"
        "    mov x0, x17\n"
        "    bl resolve_stub\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x2, x3, [sp, #32]\n"
        "    ldp x4, x5, [sp, #48]\n"
        "    ldp x6, x7, [sp, #64]\n"
        "    ldp q0, q1, [sp, #80]\n"
        "    ldp q2, q3, [sp, #112]\n"
        "    ldp q4, q5, [sp, #144]\n"
        "    ldp q6, q7, [sp, #176]\n"
        "    ldp x29, x30, [sp], #208\n"
        ".cfi_def_cfa sp, 0\n"
        ".cfi_restore x29\n"
        ".cfi_restore x30\n"
        "    br x16\n"
        ".cfi_endproc\n"
        ".popsection\n");
#endif
#undef FUNCTION
#undef OWN
__asm__(".section .note.GNU-stack, \"\", %progbits\n.text\n");
