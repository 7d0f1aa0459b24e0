// nvcuda::wmma: matrices of every type and shape, by rows and by columns. Whole numbers: sums are exact in every order.
#include <mma.h>
using namespace nvcuda;
__shared__ alignas(128) unsigned char memory[4096];
template <class T>
__device__ T* filled(const signed char* numbers) {
    T* s = (T*)memory;
    __syncthreads();
    for (int i = threadIdx.x; i < sizeof(memory) / sizeof(T); i += blockDim.x) s[i] = T((float)numbers[i]);
    __syncthreads();
    return s;
}
// A and B are read from shared memory, C, times a scale, from where D goes.
template <int M, int N, int K, class Fragment, class T, class Sum, class LayoutA, class LayoutB>
__device__ void product(const T* s, Sum*& sums, wmma::layout_t in, wmma::layout_t out, int scale) {
    wmma::fragment<wmma::matrix_a, M, N, K, Fragment, LayoutA> a;
    wmma::fragment<wmma::matrix_b, M, N, K, Fragment, LayoutB> b;
    wmma::fragment<wmma::accumulator, M, N, K, Sum> c;
    wmma::load_matrix_sync(a, s, 32);
    wmma::load_matrix_sync(b, s + 256 / sizeof(T), 48);
    wmma::load_matrix_sync(c, sums, 32, in);
    for (int i = 0; i < c.num_elements; i++) c.x[i] = c.x[i] * Sum(scale);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(sums, c, 32, out);
    sums += 32 * 32;
}
using row = wmma::row_major;
using col = wmma::col_major;
extern "C" __global__ void wmma_products(float* floats, __half* halves, int* whole, double* doubles, const signed char* numbers,
                                         int scale) {
    const auto rows = wmma::mem_row_major, cols = wmma::mem_col_major;
    const __half* h = filled<__half>(numbers);
    product<16, 16, 16, __half, __half, float, row, col>(h, floats, rows, cols, scale);
    product<32, 8, 16, __half, __half, float, col, row>(h, floats, cols, rows, scale);
    product<8, 32, 16, __half, __half, __half, row, row>(h, halves, rows, rows, scale);
    product<16, 16, 16, __half, __half, __half, col, col>(h, halves, cols, rows, scale);
    const __nv_bfloat16* f = filled<__nv_bfloat16>(numbers);
    product<32, 8, 16, __nv_bfloat16, __nv_bfloat16, float, row, col>(f, floats, rows, rows, scale);
    product<8, 32, 16, __nv_bfloat16, __nv_bfloat16, float, col, row>(f, floats, rows, cols, scale);
    const float* t = filled<float>(numbers);
    product<16, 16, 8, wmma::precision::tf32, float, float, row, row>(t, floats, cols, cols, scale);
    product<16, 16, 8, wmma::precision::tf32, float, float, col, col>(t, floats, rows, cols, scale);
    const signed char* s = filled<signed char>(numbers);
    product<16, 16, 16, signed char, signed char, int, row, col>(s, whole, rows, cols, scale);
    product<8, 32, 16, signed char, signed char, int, col, row>(s, whole, cols, rows, scale);
    product<32, 8, 16, unsigned char, unsigned char, int, row, row>((const unsigned char*)s, whole, rows, rows, scale);
    const double* d = filled<double>(numbers);
    product<8, 8, 4, double, double, double, row, col>(d, doubles, rows, cols, scale);
    product<8, 8, 4, double, double, double, col, row>(d, doubles, cols, rows, scale);
}
