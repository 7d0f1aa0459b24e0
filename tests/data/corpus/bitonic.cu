// A sorting network in shared memory, keys with payload.
extern "C" __global__ void bitonic(int* keys, unsigned short* order, const int* a) {
    __shared__ int k[256];
    __shared__ unsigned short v[256];
    int t = threadIdx.x, base = blockIdx.x * 256;
    k[t] = a[base + t];
    v[t] = t;
    __syncthreads();
    for (int size = 2; size <= 256; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            int o = t ^ step;
            if (o > t) {
                // Equal keys are ordered by payload: the result is one, whatever the network does.
                bool greater = k[t] > k[o] || (k[t] == k[o] && v[t] > v[o]);
                if (greater == ((t & size) == 0)) {
                    int x = k[t];
                    k[t] = k[o];
                    k[o] = x;
                    unsigned short y = v[t];
                    v[t] = v[o];
                    v[o] = y;
                }
            }
            __syncthreads();
        }
    keys[base + t] = k[t];
    order[base + t] = v[t];
}
