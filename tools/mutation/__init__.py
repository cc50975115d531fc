"""The parts of tools/mutate.py: mutants, the tests that reach them, and what became of each."""
