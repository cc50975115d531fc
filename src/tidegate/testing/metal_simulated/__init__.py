"""A simulated Metal, strict where the real one only crashes, behind the names that PyObjC gives.

    metal = native(seed=1)
    metal.register("twice", lambda workgroups, bindings, constants: ...)
    device = metal.MTLCreateSystemDefaultDevice()

How objects behave
------------------
- A method is a selector, colons written as underscores. Its name and the types of its arguments are checked against
  `selectors.json` (PyObjC's metadata, the part that is needed) or `plain` (plain classes, by hand). Result arguments
  (`error:`) are passed as None and returned as members of a tuple. Structs are tuples. Nothing else is public.
- An object lives as long as Python refers to it: dropping the last reference is the release. A command buffer with
  unretained references holds what is encoded weakly; what dies before it has completed is a violation, and the
  command buffer fails. Memory of a released buffer is overwritten.
- `commandBuffer` and the encoders are autoreleased: they need an `autorelease_pool`, which keeps them until it is left.
- A queue is a thread that executes committed command buffers in order. Handlers and listeners' blocks run on threads of
  their own, which exist while there is something to run.
- A broken rule is recorded in `violations` and raised, as ViolationError, from the call that broke it. Each rule in
  `rules` names the page of Apple's documentation that states it. What no page states is drawn from the seed.
- A kernel's body is not run: the host function registered under its name is, with the arguments that the source
  declares. A kernel that raises, or a `fault`, ends the command buffer in error; its signals happen all the same.
- Calls on the main thread cannot be interrupted in the middle, like any foreign call.
"""

from __future__ import annotations

from .native import Native, native
from .rules import CHOICES, RULES, Rule, Violation, ViolationError
from .simulation import Settings

__all__ = ["CHOICES", "RULES", "Native", "Rule", "Settings", "Violation", "ViolationError", "native"]
