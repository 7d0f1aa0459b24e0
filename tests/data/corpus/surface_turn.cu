// A turned copy by surfaces of bytes and of quads, with accesses beyond the edges that read zero and write nothing.
extern "C" __global__ void surface_turn(int4* out, cudaSurfaceObject_t bytes, cudaSurfaceObject_t quads,
                                        cudaSurfaceObject_t target) {
    int x = threadIdx.x - 2, y = blockIdx.x - 2;
    uchar4 four;
    surf2Dread(&four, bytes, x * 4, y, cudaBoundaryModeZero);
    int4 clamped;
    surf2Dread(&clamped, quads, x * 16, y, cudaBoundaryModeClamp);
    surf2Dwrite(make_uchar4(four.w, four.z, four.y, four.x), target, y * 4, x, cudaBoundaryModeZero);
    out[blockIdx.x * blockDim.x + threadIdx.x] = clamped;
}
