// Packed records read byte by byte, and copies whose length is data.
#pragma pack(push, 1)
struct Record { char tag; int value; short s; double d; };
#pragma pack(pop)
extern "C" __global__ void unaligned_bytes(unsigned char* out, double* sums, const Record* r, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Record x = r[i];
    sums[i] = x.tag + x.s + x.d * 0.5;
    const unsigned char* from = (const unsigned char*)&r[i];
    int length = x.tag & 15;
    for (int k = 0; k < 16; ++k) out[16 * i + k] = k < length && k < 15 ? from[k] ^ (unsigned char)x.value : 0xee;
}
