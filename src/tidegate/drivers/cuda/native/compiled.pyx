# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False, autotestdict=False, freethreading_compatible=True
"""The CUDA driver, compiled: what a submission touches on its way from the core to the device.

The core gives plain numbers to `put` (see `_core/native.h`), which finds a stream, makes the calls and takes the epoch,
with the GIL held and without any Python. What it cannot do, because it takes a call that may block or a decision that
is rare, it leaves to the way in Python: `queue.CudaQueue.issue`. Both work on what is here: the streams with their
epochs and places, the events, the staging ring, the graph instances; the classes in Python stand over it.

Everything about streams is under the device's lock. `put` only tries it: where somebody in Python is in the middle of
something, the way in Python waits for its turn. CUDA's functions are called through addresses that Python looks up, so
that nothing of CUDA is needed to build this, and the simulation can stand there instead.

Read in this order.
"""

cimport cython

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove

include "ground.pxi"
include "ranges.pxi"
include "events.pxi"
include "device.pxi"
include "streams.pxi"
include "placement.pxi"
include "kernels.pxi"
include "graphs.pxi"
include "put.pxi"
include "pieces.pxi"
