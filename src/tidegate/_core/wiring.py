"""Joins the compiled core with what it calls in Python: explanations, awaits, the threads of host calls, and forks."""

from __future__ import annotations

from . import compiled, process
from .awaiting import await_point, await_submission
from .explain import explain, explain_targets
from .thread_state import thread_state


def _pool() -> object:
    return thread_state.pool


def _in_child() -> None:
    compiled.after_fork()
    compiled.pollers.clear()


compiled.install(
    explain=explain,
    targets=explain_targets,
    awaiting_point=await_point,
    awaiting_submission=await_submission,
    host_pool=_pool,
)
process.in_child(_in_child)
