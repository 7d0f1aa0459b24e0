// A map whose every field is replaced in shared memory, copied to global memory and used; then its address alone there.
#include <cuda/ptx>
namespace ptx = cuda::ptx;
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void tensor_map_replace(double* out, double* moved, void* place, const double* table, const double* other,
                                              const __grid_constant__ Map given) {
    __shared__ alignas(1024) double tile[32];
    __shared__ alignas(128) Map map;
    __shared__ alignas(8) unsigned long long barrier;
    const int start[2] = {16, 1};
    int i = threadIdx.x;
    if (i < 16) map.words[i] = given.words[i];
    __syncwarp();
    if (i == 0) {
        auto in = ptx::space_shared;
        ptx::tensormap_replace_global_address(in, &map, table);
        ptx::tensormap_replace_rank(in, &map, 1);
        ptx::tensormap_replace_box_dim(in, &map, ptx::n32_t<0>(), 8);
        ptx::tensormap_replace_box_dim(in, &map, ptx::n32_t<1>(), 8);
        ptx::tensormap_replace_global_dim(in, &map, ptx::n32_t<0>(), 20);
        ptx::tensormap_replace_global_dim(in, &map, ptx::n32_t<1>(), 7);
        ptx::tensormap_replace_global_stride(in, &map, ptx::n32_t<0>(), 160ull);
        ptx::tensormap_replace_element_size(in, &map, ptx::n32_t<0>(), 1);
        ptx::tensormap_replace_element_size(in, &map, ptx::n32_t<1>(), 2);
        ptx::tensormap_replace_elemtype(in, &map, ptx::n32_t<9>());
        ptx::tensormap_replace_interleave_layout(in, &map, ptx::n32_t<0>());
        ptx::tensormap_replace_swizzle_mode(in, &map, ptx::n32_t<2>());
        ptx::tensormap_replace_fill_mode(in, &map, ptx::n32_t<1>());
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    for (int turn = 0; turn < 2; turn++) {
        __syncwarp();
        if (turn == 0) {
            ptx::tensormap_cp_fenceproxy(ptx::sem_release, ptx::scope_gpu, place, &map, ptx::n32_t<128>());
        } else {
            if (i == 0) ptx::tensormap_replace_global_address(ptx::space_global, place, other);
            ptx::fence_proxy_tensormap_generic(ptx::sem_release, ptx::scope_gpu);
        }
        ptx::fence_proxy_tensormap_generic(ptx::sem_acquire, ptx::scope_gpu, place, ptx::n32_t<128>());
        if (i == 0) {
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, 256);
            ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, place, start, &barrier);
        }
        __syncwarp();
        while (!ptx::mbarrier_try_wait_parity(&barrier, turn)) {}
        (turn ? moved : out)[i] = tile[i];
    }
}
