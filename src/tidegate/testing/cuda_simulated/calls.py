"""What every call of the simulated native layer goes through: is CUDA started, is there a context, does it live."""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar

from .codes import INVALID_CONTEXT, INVALID_DEVICE, NOT_INITIALIZED, Refusal, native_error
from .machine import Card, Machine
from .op import Op
from .stream import Stream

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="Calls")


def call(name: str, needs: str = "init") -> Callable[[Callable[Concatenate[C, P], R]], Callable[Concatenate[C, P], R]]:
    """Make a method one call of CUDA.

    `needs` is "nothing", "init", "handle" or "context". Measured: a call that is told its stream, event or memory
    needs no current context ("handle"; natives that are `strict` want one all the same), one that makes something in
    a context does; these two kinds report a fault for ever after, while the others still work.
    """

    def decorate(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
        @functools.wraps(method)
        def called(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                self._enter(needs)
                return method(self, *args, **kwargs)
            except Refusal as refusal:
                raise native_error(name, refusal.code) from None

        return called

    return decorate


class Calls:
    """The state behind all calls.

    Attributes:
        counts: how many native objects exist, by the names of `Native.counts`.

    """

    def __init__(self, machine: Machine, strict: bool = False, without: frozenset[str] = frozenset()) -> None:
        self.machine = machine
        self.counts: Counter[str] = Counter()
        self._strict = strict
        self._without = without
        self._initialised = False
        self._stacks = threading.local()
        self._contexts = {machine.add(card): card for card in machine.cards}
        self._numbers = count()

    def _enter(self, needs: str) -> None:
        if needs == "nothing":
            return
        if not self._initialised or os.getpid() != self.machine.process:
            raise Refusal(NOT_INITIALIZED)
        stack = self._stack
        if not stack and (needs == "context" or (self._strict and needs == "handle")):
            raise Refusal(INVALID_CONTEXT)
        if needs != "init":
            self._check_fault(stack[-1] if stack else self.machine.cards[0])

    def _check_fault(self, card: Card) -> None:
        if card.fault:
            raise Refusal(card.fault)

    @property
    def _stack(self) -> list[Card]:
        if not hasattr(self._stacks, "cards"):
            self._stacks.cards = []
        stack: list[Card] = self._stacks.cards
        return stack

    @property
    def _card(self) -> Card:
        return self._stack[-1]

    def _device(self, device: int) -> Card:
        if not 0 <= device < len(self.machine.cards):
            raise Refusal(INVALID_DEVICE)
        return self.machine.cards[device]

    def _stream(self, stream: int) -> Stream:
        """Return a stream; the small numbers are the context's own default stream."""
        if stream in (0, 1, 2):
            card = self._stack[-1] if self._stack else self.machine.cards[0]
            card.default = card.default or Stream(card, -1)
            found: Stream = card.default
        else:
            found = self.machine.find(Stream, stream)
        self._check_fault(found.card)
        if found.callers:  # who calls on a full stream waits for who called before, whatever the call (measured)
            self.machine.poll(lambda: not found.callers, "a call on a full stream")
        return found

    def _drain(self, name: str, cards: list[Card]) -> None:
        """Block until all that was given to some cards is over, as a few calls do that look harmless.

        Who launches or records an event meanwhile, on whatever stream, is held up too (measured).
        """
        ops = [stream.last for card in cards for stream in list(card.streams) if stream.last is not None]
        if not all(op.over for op in ops):
            self._wait_for(name, ops, cards)
        for card in cards:
            self._check_fault(card)

    def _wait_for(self, name: str, ops: list[Op], cards: list[Card]) -> None:
        mark = object()
        try:
            for card in cards:
                card.draining.add(mark)
            self.machine.poll(
                lambda: all(op.over or op.stream.card.fault for op in ops), f"{name}, which waits for all work,"
            )
        finally:
            for card in cards:
                card.draining.discard(mark)

    def _queue_up(self, card: Card) -> None:
        """Block while another thread is in a call that waits for all work."""
        if card.draining:
            self.machine.poll(lambda: not card.draining or bool(card.fault), "a call beside one that waits for all")
