/* The way from native code into Python (gate.c). */

#pragma once

/* For this library and its siblings: start Python if it does not run, and let `pympsd_client.routing.libraries` write the
 * addresses of the functions behind the stubs of `library` to `table`. A prototype is "name(types of parameters)".
 * Returns 0; or, after one sentence on standard error, a CUresult, which is the same for each call. */
int pympsd_attach(const char *library, int count, const char *const *prototypes, void **table);

/* `pympsd_client.routing.exports` calls this if the program runs natively, with the driver's own cuGetExportTable. */
void pympsd_pass_on(int (*original)(const void **table, const void *id));

/* Return whether a function has been attached. */
__attribute__((visibility("hidden"))) int gate_is_open(void);
