"""The one lock of the core.

A single lock, rather than one per object, because every interesting step touches several: checking and claiming all
signals of a submission, counting down waits, retiring. One lock has no order to get wrong, and behind the GIL a finer
grain would buy nothing. The rules that keep it cheap and safe:

- A section is short and calls neither user code nor a driver, but for the express way (`_express.c`), which only tries
  the lock and has the driver issue inside of it, without any Python. It is always entered by `with core_lock:`, the
  only form in which CPython cannot be interrupted between taking a lock and being sure to give it back.
- It is an RLock not in order to be taken twice, but because an RLock knows its owner. A collector's finalizer or a
  signal handler may start on a thread that is inside a section; whatever it calls asks `interrupted_here` first and
  leaves a note for the reaper instead (M12).
- Sections are written so that an exception at any point leaves something that can be run again: see `timeline`.
"""

from __future__ import annotations

import threading

core_lock = threading.RLock()

interrupted_here = core_lock._is_owned  # type: ignore[attr-defined]
"""Whether this thread is inside a section already, so that the caller runs in a finalizer or a signal handler."""
