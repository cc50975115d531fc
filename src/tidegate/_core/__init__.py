"""What every driver shares: timelines, submissions, memory, programs. No vendor import.

One compiled module, `compiled.pyx`, includes a `.pxi` file for each noun; `compiled.pyi` tells type checkers what it
offers. The Python files around it are policy, checks, and what need not be fast. Read by rooms, in this order:

- ground: `ground/step.pxi`; `process`, `background`, `thread_state`, `wiring`.
- timelines: `timelines/order.pxi`, `continuations.pxi`, `timeline.pxi`, `semaphore.pxi`, `waiting.pxi`; `failures`,
  `awaiting`, `explain`.
- memory: `memory/memory.pxi`; `checks`, `buffer`, `view`, `dlpack`, `pool`, `staging`.
- work: `work/work.pxi`, `submission.pxi`, `workload.pxi`, `admission.pxi`, `issue.pxi`, `retirement.pxi`, `native.h`,
  `native.pxi`, `operations.pxi`; `workload`, `starvation`, `following`, `host_calls`, `files`, `operations`, `queue`,
  `lane`, `device`, `registry`, `foreign_streams`, `native_events`.
- programs: `programs/function.pxi`; `slots`, `kernel`, `kernel_cache`, `recording`.

`docs/design.md` says how the core works and shows the way of one submission.
"""
