"""What `tidegate bench` runs: each case of Tidegate beside its twins, in one process and in alternating rounds.

`model` says what a case is, `runner` takes the samples, `goals` judges them, `report` shows them. The cases stand in
one module per group: `semaphores`, `executions`, `awaits`, `crowds`, `bandwidth`. A case is a set of *sides*
(Tidegate, IREE's runtime through its Python bindings, the standard library) that do the same thing. Every round asks
each side once, so that whatever else the machine does hits all of them alike.
"""

from __future__ import annotations
