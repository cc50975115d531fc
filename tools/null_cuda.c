/* A CUDA driver that does nothing in no time: what is left of a submission over it is our own cost.

   `profile_submit.py` builds it in place of libcuda. A word is raised by the next calls on its stream, `null_lag`
   submissions later, so that a chain finds its predecessor still running, as it does behind a slower device; 0 raises
   it at once. Not a simulation: no work is done, events mean nothing, memory is the host's. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;

enum { MOST_STREAMS = 64 };
static struct { uint64_t *word, last; } streams[MOST_STREAMS];
static uint64_t streams_made, handles_made = 4096;
static uint64_t null_lag;
static _Thread_local handle current;

void null_set_lag(uint64_t lag) { null_lag = lag; }

/* The device has caught up. */
void null_settle(void) {
    for (int i = 0; i < MOST_STREAMS; ++i)
        if (streams[i].word) __atomic_store_n(streams[i].word, streams[i].last, __ATOMIC_RELEASE);
}

static int make(handle *out) {
    *out = (handle)(uintptr_t)++handles_made;
    return 0;
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *out) { return *out = 13000, 0; }
int cuDeviceGetCount(int *out) { return *out = 1, 0; }
int cuDeviceGet(int *out, int index) { return *out = index, 0; }
int cuDeviceGetName(char *out, int size, int device) { return out[0] = 'n', out[1] = 0, 0; }
int cuDeviceTotalMem_v2(size_t *out, int device) { return *out = (size_t)1 << 34, 0; }
int cuDeviceGetAttribute(int *out, int what, int device) {
    *out = what == 75 ? 9 : what == 76 ? 0 : what == 97 ? 232448 : what == 122 || what == 115 ? 1 : 1024;
    return 0;
}
int cuDevicePrimaryCtxRetain(handle *out, int device) { return *out = (handle)1, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(handle context) { return current = context, 0; }
int cuCtxPopCurrent_v2(handle *out) { return *out = current, current = 0, 0; }
int cuCtxGetCurrent(handle *out) { return *out = current, 0; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, 0; }

int cuStreamCreateWithPriority(handle *out, unsigned flags, int priority) {
    *out = (handle)(uintptr_t)(1 + streams_made++ % (MOST_STREAMS - 1));
    return 0;
}
int cuStreamDestroy_v2(handle stream) { return streams[(uintptr_t)stream].word = 0, 0; }
int cuStreamQuery(handle stream) { return 0; }
int cuStreamSynchronize(handle stream) { return 0; }
int cuStreamWaitEvent(handle stream, handle event, unsigned flags) { return 0; }
int cuStreamWriteValue64_v2(handle stream, uint64_t address, uint64_t value, unsigned flags) {
    uint64_t *word = (uint64_t *)(uintptr_t)address;
    streams[(uintptr_t)stream].word = word;
    streams[(uintptr_t)stream].last = value;
    if (value > null_lag) __atomic_store_n(word, value - null_lag, __ATOMIC_RELEASE);
    return 0;
}
int cuStreamWaitValue64_v2(handle stream, uint64_t address, uint64_t value, unsigned flags) { return 0; }

int cuEventCreate(handle *out, unsigned flags) { return make(out); }
int cuEventDestroy_v2(handle event) { return 0; }
int cuEventRecord(handle event, handle stream) { return 0; }
int cuEventQuery(handle event) { return 0; }
int cuEventSynchronize(handle event) { return null_settle(), 0; }

int cuMemPoolCreate(handle *out, const void *props) { return make(out); }
int cuMemPoolDestroy(handle pool) { return 0; }
int cuMemPoolSetAttribute(handle pool, int what, void *value) { return 0; }
int cuMemPoolGetAttribute(handle pool, int what, void *value) { return *(uint64_t *)value = 0, 0; }
int cuMemPoolTrimTo(handle pool, size_t keep) { return 0; }
int cuMemAllocFromPoolAsync(uint64_t *out, size_t size, handle pool, handle stream) {
    return *out = (uint64_t)(uintptr_t)calloc(1, size), 0;
}
int cuMemFreeAsync(uint64_t address, handle stream) { return free((void *)(uintptr_t)address), 0; }
enum { MOST_BLOCKS = 256 };
static struct { uint64_t begin, end; } blocks[MOST_BLOCKS]; /* page-locked memory */
static int blocks_made;
int cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    if (!(*out = calloc(1, size))) return 2;
    blocks[blocks_made % MOST_BLOCKS].begin = (uint64_t)(uintptr_t)*out;
    blocks[blocks_made++ % MOST_BLOCKS].end = (uint64_t)(uintptr_t)*out + size;
    return 0;
}
int cuMemFreeHost(void *address) { return free(address), 0; }
int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) { return 0; }
int cuMemHostUnregister(void *address) { return 0; }
int cuPointerGetAttribute(void *out, int what, uint64_t address) {
    for (int i = 0; what == 2 && i < MOST_BLOCKS; ++i)
        if (blocks[i].begin <= address && address < blocks[i].end) return *(int *)out = 1, 0;
    return *(int *)out = 0, what == 2;
}
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, handle stream) { return 0; }
int cuMemsetD16Async(uint64_t address, unsigned short value, size_t count, handle stream) { return 0; }
int cuMemsetD32Async(uint64_t address, unsigned value, size_t count, handle stream) { return 0; }
int cuMemcpyAsync(uint64_t target, uint64_t source, size_t size, handle stream) { return 0; }

int cuLibraryLoadData(handle *out, const void *image, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    return make(out);
}
int cuLibraryUnload(handle library) { return 0; }
/* Two kernels: touch(unsigned *) and scale(float *, float *, float, unsigned). */
static const char *const kernel_names[] = {"touch", "scale"};
static const size_t parameter_counts[] = {1, 4};
int cuLibraryGetKernel(handle *out, handle library, const char *name) {
    for (uintptr_t i = 0; i < 2; ++i)
        if (!strcmp(name, kernel_names[i])) return *out = (handle)(i + 1), 0;
    return 500;
}
int cuLibraryGetKernelCount(unsigned *out, handle library) { return *out = 2, 0; }
int cuLibraryEnumerateKernels(handle *out, unsigned count, handle library) {
    for (uintptr_t i = 0; i < count; ++i) out[i] = (handle)(i + 1);
    return 0;
}
int cuKernelGetName(const char **out, handle kernel) { return *out = kernel_names[(uintptr_t)kernel - 1], 0; }
int cuKernelGetParamInfo(handle kernel, size_t index, size_t *offset, size_t *size) {
    if (index >= parameter_counts[(uintptr_t)kernel - 1]) return 1;
    *offset = index < 2 ? 8 * index : 16 + 4 * (index - 2);
    return *size = index < 2 ? 8 : 4, 0;
}
int cuKernelGetFunction(handle *out, handle kernel) { return *out = kernel, 0; }
int cuFuncGetAttribute(int *out, int what, handle function) { return *out = what == 0 ? 1024 : 0, 0; }
int cuFuncSetAttribute(handle function, int what, int value) { return 0; }
int cuFuncLoad(handle function) { return 0; }
int cuLibraryGetModule(handle *out, handle library) { return make(out); }
int cuModuleLoadDataEx(handle *out, const void *image, unsigned count, void *options, void *values) { return make(out); }
int cuModuleUnload(handle module) { return 0; }
int cuLaunchKernel(handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, handle stream, void **params, void **extra) {
    return 0;
}
int cuLaunchKernelEx(const void *config, handle function, void **params, void **extra) { return 0; }

int cuGraphCreate(handle *out, unsigned flags) { return make(out); }
int cuGraphDestroy(handle graph) { return 0; }
int cuGraphAddKernelNode_v2(handle *out, handle graph, handle *after, size_t count, void *params) { return make(out); }
int cuGraphAddMemsetNode(handle *out, handle graph, handle *after, size_t count, void *params, handle context) {
    return make(out);
}
int cuGraphAddMemcpyNode(handle *out, handle graph, handle *after, size_t count, void *params, handle context) {
    return make(out);
}
int cuGraphAddEmptyNode(handle *out, handle graph, handle *after, size_t count) { return make(out); }
int cuGraphKernelNodeSetAttribute(handle node, int what, void *value) { return 0; }
int cuGraphInstantiateWithFlags(handle *out, handle graph, uint64_t flags) { return make(out); }
int cuGraphExecDestroy(handle instance) { return 0; }
int cuGraphExecKernelNodeSetParams_v2(handle instance, handle node, void *params) { return 0; }
int cuGraphExecMemsetNodeSetParams(handle instance, handle node, void *params, handle context) { return 0; }
int cuGraphExecMemcpyNodeSetParams(handle instance, handle node, void *params, handle context) { return 0; }
int cuGraphNodeSetEnabled(handle instance, handle node, unsigned enabled) { return 0; }
int cuGraphLaunch(handle instance, handle stream) { return 0; }
int cuGetErrorName(int code, const char **out) { return *out = "NULL_CUDA", 0; }
int cuGetErrorString(int code, const char **out) { return *out = "a driver that does nothing", 0; }
