"""The parts of tools/mutate.py: mutants, which tests reach them, and the processes that try them."""
