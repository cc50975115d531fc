/* What a C kernel for the CPU device may use.
 *
 * Tidegate puts this text in front of every C source it compiles; including it
 * by name as well does no harm and lets an editor understand the kernel alone.
 *
 *     tidegate_kernel void saxpy(const float *x, float *y, float a, uint32_t n) {
 *         tidegate_for(i, n) y[i] += a * x[i];
 *     }
 *
 * An entry point returns void. Its pointers come first and are the bindings in
 * order; the scalars and structs behind them are the constants in order. It is
 * called once per workgroup, and several threads may be inside it at a time,
 * each with a workgroup of its own.
 */
#ifndef TIDEGATE_KERNEL_H
#define TIDEGATE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reflection reads the preprocessed text and must still find the mark there. */
#ifndef TIDEGATE_REFLECTION
#define tidegate_kernel static __attribute__((unused))
#endif

/* The workgroup that the calling thread is at. */
struct tidegate_group {
    uint32_t id[3];       /* which workgroup this is, x first */
    uint32_t count[3];    /* how many workgroups the dispatch has */
    uint32_t size[3];     /* items per workgroup, as the kernel declares it */
    void *local;          /* scratch memory, aligned to 64, not cleared; NULL if none was asked for */
    uint32_t local_bytes; /* its size */
};

static _Thread_local struct tidegate_group tidegate_group __attribute__((unused));

static inline int64_t tidegate_share_begin_(void) {
    return (int64_t)tidegate_group.id[0] * tidegate_group.size[0];
}

static inline int64_t tidegate_share_end_(int64_t n) {
    int64_t end = tidegate_share_begin_() + tidegate_group.size[0];
    return end < n ? end : n;
}

/* Loops i over this workgroup's share of n items along x. n is evaluated once,
 * and both bounds are plain locals, so that the loop body vectorizes. */
#define tidegate_for(i, n)                                                                              \
    for (int64_t i = tidegate_share_begin_(), tidegate_end_of_##i = tidegate_share_end_((int64_t)(n));  \
         i < tidegate_end_of_##i; ++i)

#endif
