/* libnvJitLink.so.12 and .13: forward calls to the installed library of the same name, except that calls for a link's
 * machine code get its PTX (pympsd_client/routing/forwarding.py). MAJOR is the version in the name. */

#define _GNU_SOURCE 1 /* dladdr */
#define STUBS "libnvJitLink/functions.h" /* from the folder of stubs.h */
#include "../stubs.h"

#include "../sibling.h"

enum { INTERNAL = 6 }; /* NVJITLINK_ERROR_INTERNAL */

static int fail(void) {
    return INTERNAL;
}

void *resolve_stub(uint64_t number) {
    return attach_stubs(LIBRARY_NAME("libnvJitLink", MAJOR)) == 0 ? stub_table[number] : (void *)fail;
}
