// A column of pixels for a convolution, out as it lies in shared memory; where it begins is a parameter.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_im2col_load(unsigned* out, const __grid_constant__ Map map, unsigned bytes, int c, int w, int h,
                                                  int n, unsigned short across, unsigned short down) {
    __shared__ alignas(1024) unsigned tile[512];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned to = __cvta_generic_to_shared(tile), bar = __cvta_generic_to_shared(&barrier);
    for (int at = threadIdx.x; at < 512; at += 64) tile[at] = 0xC0DE0000 + at;
    ptx::fence_proxy_async(ptx::space_shared);
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, bytes);
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
            "[%6], {%7, %8};" ::"r"(to), "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(bar), "h"(across), "h"(down) : "memory");
    }
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    for (int at = threadIdx.x; at < 512; at += 64) out[at] = tile[at];
}
