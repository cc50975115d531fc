"""What every driver shares: timelines, host waits, submissions, memory, recording. No vendor import.

Read in this order: `lock`, `process`, `background`, `thread_state` (the ground), `timeline`, `semaphore`, `timepoint`,
`subscription`, `host_wait`, `awaiting`, `explain` (timelines), `submission`, `scheduling`, `issuing`, `retirement`,
`operations`, `queue`, `lane`, `workload`, `device` (work), `buffer`, `view`, `pool`, `staging` (memory), `recording`,
`kernel` (programs), `registry` (drivers).
"""
