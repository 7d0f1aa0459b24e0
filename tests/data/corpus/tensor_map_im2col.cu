// Columns of pixels for a convolution: a box with a border of one pixel, in steps, moved by offsets; and stored without.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_im2col(unsigned* out, const __grid_constant__ Map image, const __grid_constant__ Map steps,
                                             const __grid_constant__ Map target) {
    __shared__ alignas(1024) unsigned tile[8 * 24];
    __shared__ alignas(8) unsigned long long barrier;
    const int starts[4][4] = {{0, -1, -1, 0}, {0, 1, 3, 0}, {4, -1, 1, 1}, {-4, 3, -1, 1}};
    int i = threadIdx.x, at = blockIdx.x;
    const int(&c)[4] = starts[at];
    unsigned to = __cvta_generic_to_shared(tile), bar = __cvta_generic_to_shared(&barrier);
    unsigned short across = at % 3, down = at / 2;
    if (i == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, 32 * 24);
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
            "[%6], {%7, %8};" ::"r"(to), "l"(blockIdx.y ? &steps : &image), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]),
            "r"(bar), "h"(across), "h"(down) : "memory");
    }
    __syncthreads();
    while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
    for (int each = i; each < 192; each += 64) out[(blockIdx.y * 4 + at) * 192 + each] = tile[each];
    if (at || blockIdx.y) return;
    __syncthreads();
    for (int each = i; each < 192; each += 64) tile[each] = 5000 + each;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (i == 0) {
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(
                         &target), "r"(0), "r"(2), "r"(-1), "r"(0), "r"(to) : "memory");
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}
