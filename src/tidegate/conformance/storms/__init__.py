"""Signal storms: real signals at random moments strike a thread that submits, signals, fails, waits and closes.

    python -m tidegate.conformance.storms --driver streams --kind interrupt --seconds 20 --seed 7

A *kind* says what comes: a handler that raises KeyboardInterrupt, one that signals, fails or submits, finalizers and
callbacks that do, arguments with code of their own. Beneath it the same random program runs, some hundreds of
operations a round. Afterwards everything is accounted for: what was submitted has ended, every claim is reached or
failed, callbacks came once, what a download read is what the operations before it wrote, and no lock is held.

- `kinds`: what comes, and what it may do.
- `strikes`: the signals, the collector, the hook for what nobody can raise.
- `ledger`: what is known of all that was done, and the accounts at the end.
- `tracks`: chains of operations over one buffer, with what NumPy has in its place.
- `machine`: the loop.
- `run`: a storm of one kind as a process of its own, which a hang ends with the stacks of all threads.

Where a driver stands on a simulation, nothing strikes in that: it stands for C code, where no handler runs.
"""
