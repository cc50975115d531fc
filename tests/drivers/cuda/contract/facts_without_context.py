"""Which calls need a current context: each is made on a thread that has none."""

from __future__ import annotations

from collections.abc import Callable

from calls import ALL, Maker
from registry import Fact, register
from rig import LIMIT, Rig


def _without(maker: Maker) -> Callable[[Rig], int | None]:
    def ask(rig: Rig) -> int | None:
        attempt = rig.attempt(maker(rig), entered=False)
        if not attempt.returned(LIMIT):
            raise TimeoutError("the call did not return")
        return attempt.code

    return ask


#: Not asked: the driver takes the current context for granted in these two, and the process dies.
_FATAL = ("add_kernel_node", "set_kernel_node")

for _name, _maker in ((name, maker) for name, maker in ALL.items() if name not in _FATAL):
    register(
        Fact(
            f"{_name}_without_a_context",
            f"What does {_name.replace('_', ' ')} return on a thread without a context?",
            _without(_maker),
        )
    )
