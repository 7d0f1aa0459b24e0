// A column of pixels from shared memory into images; where it begins is a parameter.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_im2col_store(const __grid_constant__ Map map, int c, int w, int h, int n) {
    __shared__ alignas(1024) unsigned tile[512];
    unsigned from = __cvta_generic_to_shared(tile);
    for (int at = threadIdx.x; at < 512; at += 64) tile[at] = 5000 + at;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x) return;
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
                 "r"(c), "r"(w), "r"(h), "r"(n), "r"(from) : "memory");
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}
