/* A driver's libnvidia-ml.so.1 with one device, for programs that run without a daemon or on a GPU. */

#include <string.h>

static int users;

int nvmlInit_v2(void) {
    ++users;
    return 0;
}

int nvmlShutdown(void) {
    return users-- > 0 ? 0 : 1;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return users ? 0 : 1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &users;
    return index ? 2 : 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &users;
    return strcmp(uuid, "GPU-7685caad-23a2-2403-a46b-a1dfeabe3819") ? 6 : 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    strncpy(name, "the driver's", length);
    return device == &users ? 0 : 2;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    rates[0] = 12;
    rates[1] = 3;
    return device == &users ? 0 : 2;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    *degrees = 40 + sensor;
    return device == &users ? 0 : 2;
}
