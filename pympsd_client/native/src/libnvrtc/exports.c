/* libnvrtc.so.12 and .13: forward calls to the installed library of the same name, except that calls for machine code get
 * PTX (pympsd_client/routing/forwarding.py). MAJOR is the version in the name. */

#define _GNU_SOURCE 1 /* dladdr */
#define STUBS "libnvrtc/functions.h" /* from the folder of stubs.h */
#include "../stubs.h"

#include "../sibling.h"

enum { INTERNAL_ERROR = 11 }; /* NVRTC_ERROR_INTERNAL_ERROR */

static int fail(void) {
    return INTERNAL_ERROR;
}

static const char *fail_with_text(void) {
    return "NVRTC_ERROR_INTERNAL_ERROR";
}

void *resolve_stub(uint64_t number) {
    if (attach_stubs(LIBRARY_NAME("libnvrtc", MAJOR)) == 0)
        return stub_table[number];
    return strcmp(stub_prototypes[number], "nvrtcGetErrorString()") == 0 ? (void *)fail_with_text : (void *)fail;
}
