// Arrays of a thread's own, indexed by data: these live in local memory.
struct Item { short key; int value; };
extern "C" __global__ void local_array(int* out, const int* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned h[16];
    Item item[8];
    for (int j = 0; j < 16; ++j) h[j] = j * i;
    for (int j = 0; j < 8; ++j) item[j] = {(short)(a[(i + j) % n] & 0xfff), j};
    for (int j = 0; j < 20; ++j) h[(a[(i + j) % n] >> 3) & 15] += j ^ h[a[i] & 15];
    for (int j = 1; j < 8; ++j)  // insertion sort
        for (int k = j; k > 0 && item[k - 1].key > item[k].key; --k) {
            Item t = item[k];
            item[k] = item[k - 1];
            item[k - 1] = t;
        }
    unsigned r = 0;
    for (int j = 0; j < 16; ++j) r = r * 31 + h[(j * a[i]) & 15];
    for (int j = 0; j < 8; ++j) r = (r ^ item[j].value) * 17 + item[j].key;
    out[i] = r;
}
