/* libcuda.so has no functions of its own. It depends on libcuda.so.1, so programs that load it find all functions there.
 * A second copy of the functions would be a second driver in the process. */

extern const int pympsd_is_in_libcuda_so_1;
const int pympsd_is_in_libcuda_so_1 = 1;
