/* Where the devices come from: a daemon, the driver's library, or a description without a daemon (source.c). */

#pragma once

#include "machine.h"

/* Return the description in the daemon's file, with the file's path and status, or NULL with the reason. `*absent` is 0 if
 * there is a file. */
enum { NO_DAEMON = 1, NO_FILE };
struct machine *read_daemons_machine(char path[4096], struct stat *status, int *absent, char reason[REASON_BYTES]);

/* If the file has been replaced, return the new description, otherwise NULL. `*gone` is 1 if there is no file. */
struct machine *read_machine_again(const char *path, struct stat *status, int *gone);

/* Return the devices that a program has without a daemon, which a short run of Python prints, or NULL with the reason. */
struct machine *describe_machine(char reason[REASON_BYTES]);

/* Return a handle of the driver's own libnvidia-ml.so.1, for dlsym, or NULL. */
void *open_drivers_library(void);
