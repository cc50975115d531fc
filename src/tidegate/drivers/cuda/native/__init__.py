"""The compiled part of the CUDA driver: streams, placement and the calls of one submission.

`compiled.pyx` is the module; it says how it is put together.
"""
