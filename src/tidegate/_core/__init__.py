"""What every driver shares: timelines, host waits, submissions, memory, recording. No vendor import.

Read in this order: `lock`, `process`, `background`, `thread_state` (the ground), `timeline`, `semaphore`, `timepoint`,
`host_wait`, `awaiting`, `explain` (timelines), `submission`, `scheduling`, `retirement`, `device`, `queue`, `lane`
(work), `buffer`, `staging` (memory), `recording`, `executable` (programs), `registry` (drivers).
"""
