/* What a kernel in CUDA C++ may use when it runs on the host: put in front of every source.
 *
 * A kernel is an ordinary function, called once for each thread of each block, one after the other. A kernel with
 * barriers has its threads as contexts of one host thread, switched at each barrier. Everything of the system comes
 * through `tidegate_launch`, so that no name of the C library stands in the way of a kernel's own names.
 */
#define __global__ __attribute__((visibility("default"), noinline))
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __CUDA_ARCH__ 900
#define __CUDACC_RTC__ 1

extern "C" {
double sqrt(double); double exp(double); double log(double); double sin(double); double cos(double);
double pow(double, double); double floor(double); double fabs(double); double fma(double, double, double);
float sqrtf(float); float expf(float); float logf(float); float sinf(float); float cosf(float); float tanhf(float);
float powf(float, float); float floorf(float); float fabsf(float); float fmaf(float, float, float);
float fmaxf(float, float); float fminf(float, float);
}

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct float3 { float x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct int3 { int x, y, z; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
typedef decltype(sizeof(0)) size_t;

struct TidegateLaunch {
    unsigned grid[3], block[3];
    void *shared;
    void **params;
    void (*stop)(int);
    long long (*clock)(void);
    void (*doze)(unsigned);
    void (*barrier)(void);
    void (*crew)(unsigned, void (*)(unsigned, void *), void *);
};

static thread_local const TidegateLaunch *tidegate_launch;
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static const int warpSize __attribute__((unused)) = 32;

static inline long long clock64() { return tidegate_launch->clock(); }
static inline unsigned long long __globaltimer() { return (unsigned long long)tidegate_launch->clock(); }
static inline void __nanosleep(unsigned ns) { tidegate_launch->doze(ns); }
static inline void __trap() { tidegate_launch->stop(719); }
static inline void __threadfence() { __sync_synchronize(); }
static inline void __threadfence_block() { __sync_synchronize(); }
static inline void __threadfence_system() { __sync_synchronize(); }
static inline void __syncthreads() {
    uint3 me = threadIdx;
    tidegate_launch->barrier();
    threadIdx = me;
}
#define assert(condition) ((condition) ? (void)0 : tidegate_launch->stop(710))

template <class T> struct tidegate_same { typedef T type; };
#define TIDEGATE_ATOMIC(name, expression)                                                           \
    template <class T> static inline T name(T *p, typename tidegate_same<T>::type v) {              \
        T old, wanted;                                                                              \
        __atomic_load(p, &old, __ATOMIC_RELAXED);                                                   \
        do wanted = (expression);                                                                   \
        while (!__atomic_compare_exchange(p, &old, &wanted, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)); \
        return old;                                                                                 \
    }
TIDEGATE_ATOMIC(atomicAdd, old + v)
TIDEGATE_ATOMIC(atomicSub, old - v)
TIDEGATE_ATOMIC(atomicExch, v)
TIDEGATE_ATOMIC(atomicMax, old < v ? v : old)
TIDEGATE_ATOMIC(atomicMin, v < old ? v : old)
TIDEGATE_ATOMIC(atomicOr, old | v)
TIDEGATE_ATOMIC(atomicAnd, old & v)
TIDEGATE_ATOMIC(atomicXor, old ^ v)
template <class T> static inline T
atomicCAS(T *p, typename tidegate_same<T>::type compare, typename tidegate_same<T>::type v) {
    __atomic_compare_exchange(p, &compare, &v, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return compare;
}
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T min(T a, typename tidegate_same<T>::type b) { return b < a ? b : a; }
template <class T> static inline T max(T a, typename tidegate_same<T>::type b) { return a < b ? b : a; }

/* How a kernel is called with an array of addresses of its arguments, and what these are. */
template <unsigned... I> struct tidegate_list {};
template <unsigned N, unsigned... I> struct tidegate_count : tidegate_count<N - 1, N - 1, I...> {};
template <unsigned... I> struct tidegate_count<0, I...> { typedef tidegate_list<I...> type; };
template <class T> struct tidegate_pointee { static const unsigned alignment = alignof(T); };
template <> struct tidegate_pointee<void> { static const unsigned alignment = 1; };
template <> struct tidegate_pointee<const void> { static const unsigned alignment = 1; };
template <> struct tidegate_pointee<volatile void> { static const unsigned alignment = 1; };
template <class T> struct tidegate_bare { typedef T type; static const unsigned pointer = 0; };
template <class T> struct tidegate_bare<T *> {
    typedef T *type;
    static const unsigned pointer = tidegate_pointee<T>::alignment; /* what the address must be a multiple of */
};
template <class T> struct tidegate_bare<const T> : tidegate_bare<T> {};

template <class... A, unsigned... I>
static inline void tidegate_call(void (*kernel)(A...), void **p, tidegate_list<I...>) {
    (void)p;
    kernel(*(typename tidegate_bare<A>::type *)p[I]...);
}

template <class... A> struct tidegate_work {
    void (*kernel)(A...);
    const TidegateLaunch *launch;
    uint3 block;
    static void one(unsigned thread, void *data) {
        const tidegate_work *work = (const tidegate_work *)data;
        const unsigned *size = work->launch->block;
        threadIdx = {thread % size[0], thread / size[0] % size[1], thread / size[0] / size[1]};
        tidegate_call(work->kernel, work->launch->params, typename tidegate_count<sizeof...(A)>::type());
    }
};

template <class... A> static inline void tidegate_run(void (*kernel)(A...), const TidegateLaunch *launch, bool barriers) {
    tidegate_launch = launch;
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    tidegate_work<A...> work = {kernel, launch, {0, 0, 0}};
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                if (barriers && threads > 1) launch->crew(threads, work.one, &work);
                else for (unsigned t = 0; t < threads; ++t) work.one(t, &work);
            }
}

struct TidegateParameter { unsigned size, alignment, pointer; };
struct TidegateKernel {
    const void *function;
    void (*run)(const TidegateLaunch *);
    unsigned count;
    const TidegateParameter *parameters;
};
template <class... A> static unsigned tidegate_arity(void (*)(A...)) { return sizeof...(A); }
template <class... A> static const TidegateParameter *tidegate_parameters(void (*)(A...)) {
    static const TidegateParameter found[sizeof...(A) + 1] = {
        {sizeof(A), alignof(A), tidegate_bare<A>::pointer}..., {0, 0, 0}};
    return found;
}
