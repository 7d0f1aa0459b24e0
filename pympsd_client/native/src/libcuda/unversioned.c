/* libcuda.so: has no functions, but needs libcuda.so.1, so that programs that load this one find all functions in it. A
 * second copy of the library would be a second driver in the process. */

extern const int pympsd_is_in_libcuda_so_1;
const int pympsd_is_in_libcuda_so_1 = 1;
