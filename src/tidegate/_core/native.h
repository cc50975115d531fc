/* The seam between the core and drivers that are compiled: one submission, told in plain numbers.

   A queue of such a driver begins with a `TidegateQueue`. The core fills in a `TidegateWork` and calls `put` with the
   GIL held, once at a time for each submission: `put` runs no Python, gives the GIL away never, and does not block. It
   has a lock of its own, which it only tries: where there is no GIL others may call it at the same moment, and a library
   that stands for the native one in tests may run Python in the middle. What it cannot do just then it leaves: to the
   way in Python (`issue`), or to a later try. Everything that the work names stays where it is until the epoch is over.

   A stream of such a driver begins with a `TidegateStream`, which says where the device stores the epochs that are over.
*/
#ifndef TIDEGATE_NATIVE_H
#define TIDEGATE_NATIVE_H

#include <stdint.h>

typedef struct TidegateStream {
    const uint64_t *word; /* where the device stores the last epoch that is over; NULL: only the driver knows */
    uint64_t issued;      /* the last epoch that was taken */
    uint64_t event_only;  /* of epochs up to this one the word may not tell: the driver is asked (0: it always tells) */
    int failed;           /* whether some epoch may have ended badly: then the driver is asked for its outcome */
    int watchers;         /* threads that look at the word without the GIL; while there are any it stays where it is */
    void *epochs;         /* the core's: the `Epochs` object of this stream; NULL: there is none any more */
    void (*release)(struct TidegateStream *stream); /* called when that goes: until then this stays where it is */
} TidegateStream;

typedef struct {
    TidegateStream *stream;
    uint64_t epoch;
} TidegateWait;

enum { /* the kinds of work */
    TIDEGATE_BARRIER = 1,
    TIDEGATE_FILL,     /* target, nbytes, pattern of `unit` bytes */
    TIDEGATE_UPDATE,   /* target, nbytes, host: memory of the host that may be paged, read during the call */
    TIDEGATE_UPLOAD,   /* target, nbytes, host: as it was given; the driver knows whether it is page-locked */
    TIDEGATE_DOWNLOAD, /* source, nbytes, host */
    TIDEGATE_COPY,     /* source, target, nbytes */
    TIDEGATE_DISPATCH, /* function, workgroups, local_memory, bindings, constants */
    TIDEGATE_EXECUTE,  /* function: what the driver made of the recording; bindings: the table */
};

enum { /* what `put` answers */
    TIDEGATE_TAKEN = 0, /* `stream` and `epoch` are set */
    TIDEGATE_NOT_NOW,   /* nothing has happened: there is no room now */
    TIDEGATE_ELSEWHERE, /* nothing has happened: this is for the way in Python */
    TIDEGATE_FAILED,    /* taken, but a native call failed: `call` and `code` tell which and how */
};

enum { /* sizes of constants that have no type yet: a plain number, to be brought to the size of the parameter */
    TIDEGATE_INTEGER = 0xFFFFFFFF, /* an int64_t */
    TIDEGATE_FLOAT = 0xFFFFFFFE,   /* a double */
};

typedef struct {
    int kind;
    uint64_t target, source, nbytes;
    void *host;
    uint32_t pattern, unit;
    void *function;
    uint32_t workgroups[3], local_memory;
    const uint64_t *bindings; /* addresses, ... */
    const uint64_t *binding_sizes;
    const uint8_t *binding_visible; /* ... and of the table of TIDEGATE_EXECUTE whether the host sees that memory */
    uint32_t binding_count;
    uint32_t constant_count;
    const void *const *constants; /* where the value of each lies, in its declared type, ... */
    const uint32_t *constant_sizes; /* ... and its size */
    const TidegateWait *waits;    /* the last epoch of each stream; they may be over by now */
    uint32_t wait_count;
    /* The answer. */
    TidegateStream *stream;
    uint64_t epoch;
    int call, code;
} TidegateWork;

typedef struct TidegateQueue {
    int (*put)(struct TidegateQueue *queue, TidegateWork *work);
} TidegateQueue;

#endif
