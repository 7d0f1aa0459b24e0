// Lists in memory from the device's own malloc, built by one thread and freed by another.
struct Node {
    int value;
    Node* next;
};
extern "C" __global__ void device_heap(int* out, int n) {
    __shared__ Node* heads[64];
    int i = threadIdx.x;
    Node* head = nullptr;
    for (int k = 0; k <= i % 9; k++) {
        Node* node = (Node*)malloc(sizeof(Node));
        node->value = i * 10 + k;
        node->next = head;
        head = node;
    }
    heads[i] = head;
    __syncthreads();
    int sum = 0, weight = 1;
    for (Node* node = heads[n - 1 - i]; node;) {
        Node* next = node->next;
        sum += weight++ * node->value;
        free(node);
        node = next;
    }
    int* more = new int[i + 1];
    for (int k = 0; k <= i; k++) more[k] = k * k;
    out[i] = sum;
    out[n + i] = more[i / 2];
    delete[] more;
    out[2 * n + i] = malloc((size_t)1 << 40) == nullptr;
}
