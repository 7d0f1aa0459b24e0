// break, continue, goto, nested loops with different exits, do-while, and a barrier reconverging all.
extern "C" __global__ void loops(int* out, const int* a) {
    __shared__ int box[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t, x = a[i] & 63, sum = 0;
    for (int j = 0; j < x; ++j) {
        if (j % 3 == 1) continue;
        if (sum > 150) break;
        for (int k = j; k > 0; k -= 4) {
            if ((k ^ x) % 7 == 0) goto next;
            sum += k;
        }
        sum += 1000;
    next:
        sum -= 3;
    }
    int c = 0;
    do {
        c += t & 3;
        if (c > 20) break;
    } while (++c < x);
    box[t] = sum;
    __syncthreads();
    for (int r = 0; r < 4; ++r) {  // a uniform loop with barriers around divergent work
        int v = box[(t + 1) & 63];
        if ((v ^ t) & 1) v = 3 * v + r;
        __syncthreads();
        box[t] = v;
        __syncthreads();
    }
    out[i] = box[t] + c;
}
