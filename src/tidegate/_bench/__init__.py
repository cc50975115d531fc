"""What `tidegate bench` runs: each case of Tidegate beside its twins, in one process and in alternating rounds.

`model` says what a case is, `runner` takes the samples, `goals` judges them, `report` shows them. The cases stand in
one module per group: `semaphores`, `executions`, `awaits`, `crowds`, `bandwidth`, and for GPUs `cuda_submissions`,
`cuda_graphs`, `cuda_transfers`, `cuda_awaits`, `cuda_independence`. A case is a set of *sides* that do the same thing:
Tidegate, IREE's runtime through its Python bindings, the standard library; on a GPU the raw calls and the libraries
that make them. Every round asks each side once, so that whatever else the machine does hits all of them alike.
"""

from __future__ import annotations
