// Structures by value with holes, nested ones, arrays and pointers inside; and scalars of odd widths between.
struct Inner { char c; short s; };
struct Outer { char tag; double d; Inner in[2]; int* to; unsigned char last; };
struct __align__(16) Wide { float v[3]; };
struct Tiny { unsigned char b[3]; };
extern "C" __global__ void struct_params(float* out, char pad, Outer o, short h, Wide w, Tiny t, bool flag,
                                         long long q) {
    int i = threadIdx.x;
    float r[12] = {(float)pad, (float)o.tag, (float)o.d, (float)o.in[0].c, (float)o.in[1].s, (float)o.last,
                   (float)h, w.v[2], (float)t.b[1], (float)flag, (float)q, (float)o.in[i & 1].s};
    if (i < 12) out[i] = r[i];
    o.to[i] = o.in[i & 1].c * 3 + t.b[i % 3];
    o.d = w.v[i % 3];  // a parameter may be changed: the copy is the thread's own
    out[12 + i] = (float)o.d + h;
}
