/* A library without functions, with the name libcuda.so.1. Programs that only check whether there is a driver's library
 * find it once it is loaded (pympsd_client/routing/pointers.py); they call the driver through cuda.bindings. */

extern const int pympsd_has_no_driver_functions;
const int pympsd_has_no_driver_functions = 1;
