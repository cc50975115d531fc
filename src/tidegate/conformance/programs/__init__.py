"""Random programs: seeded graphs of work that are right by construction, run on a device and compared with NumPy.

A program is a list of *steps* (`program`), each with the ranges of memory that it reads and writes. `generate` draws
one from a seed: steps over several buffers, host arrays, queues and lanes, so that every pair in conflict is ordered by
what waits for what. `wiring` turns that order into timepoints, submissions and lanes. `source` writes the program as
Python text, which is both what runs and what a failing seed prints; it stands on `harness`, which waits, compares and
reports. `run` runs a seed, and makes what failed as small as it can (`shrink`).

What a program checks:

- The bytes of every buffer and host array are those that NumPy gets by doing the steps one after the other.
- An injected failure ends exactly the steps that depend on it, each with that very error.
- Every submission ends, every semaphore gets to its last value or carries the failure, callbacks are called once, and
  the device is left with nothing held and nothing issued.
"""
