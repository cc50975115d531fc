"""Code of the simulation: libraries, kernels, functions, launches."""

from __future__ import annotations

from ...drivers.cuda._native import Launch
from .calls import Calls, call
from .codes import Refusal
from .launches import Function, Kernel, Library, find_code, launch_work
from .machine import Card


class CodeCalls(Calls):
    """As in `Native`."""

    @call("cuLibraryLoadData")
    def load_library(self, image: bytes) -> int:
        """Load PTX (ended by a zero), a cubin or a fatbin. Does not wait for work."""
        library = self.machine.add(Library(self.machine, bytes(image)))
        self.counts["libraries"] += 1
        return library

    @call("cuLibraryUnload")
    def unload_library(self, library: int) -> None:
        """Unload it."""
        gone = self.machine.find(Library, library)
        cards = [card for card in self.machine.cards if card.index in gone.loaded_on and not card.fault]
        self._drain("unloading a library", cards)  # measured: what is on a device leaves it only when nothing runs
        self.machine.remove(Library, library)
        for handle in gone.handles.values():
            for function in self.machine.remove(Kernel, handle).functions.values():
                self.machine.remove(Function, function)
        self.counts["libraries"] -= 1

    @call("cuLibraryGetKernel")
    def kernel(self, library: int, name: str) -> int:
        """Return a kernel by its name."""
        return self._kernel(self.machine.find(Library, library), name)

    def _kernel(self, library: Library, name: str) -> int:
        code = find_code(library, name)
        if name not in library.handles:
            library.handles[name] = self.machine.add(Kernel(library, code))
        return library.handles[name]

    @call("cuLibraryEnumerateKernels")
    def kernels(self, library: int) -> dict[str, int]:
        """Return all kernels by name. Empty where the driver cannot tell."""
        if "cuKernelGetName" in self._without or "cuLibraryEnumerateKernels" in self._without:
            return {}
        found = self.machine.find(Library, library)
        try:
            names = list(found.codes)
        except Refusal:
            return {}  # what is wrong with code is told to who asks for a certain kernel, or for the module (measured)
        return {name: self._kernel(found, name) for name in names}

    @call("cuLibraryGetModule", "context")
    def module(self, library: int) -> int:
        """Have all of a library brought into the context; what is wrong with it is told here. May block."""
        found = self.machine.find(Library, library)
        found.check()
        self._bring(found, self._card, "loading a module")
        return library

    @call("cuModuleLoadDataEx", "context")
    def load_log(self, image: bytes) -> str:
        """Return what CUDA says about code that it does not take; nothing about other code, which it waits to load."""
        found = Library(self.machine, bytes(image))
        if found.good:
            self._drain("loading a module", [self._card])
        return found.log

    @call("cuKernelGetParamInfo")
    def kernel_parameters(self, kernel: int) -> list[tuple[int, int]] | None:
        """Return offset and size of each parameter; None where the driver cannot tell."""
        if "cuKernelGetParamInfo" in self._without:
            return None
        found = self.machine.find(Kernel, kernel)
        if self._stack:
            self._bring(found.library, self._card, "asking for parameters")
        return [(parameter.offset, parameter.size) for parameter in found.code.parameters]

    @call("cuKernelGetFunction", "context")
    def function(self, kernel: int) -> int:
        """Return what `launch` takes, loaded onto the device, so that the first launch need not."""
        return self._function(self.machine.find(Kernel, kernel), self._card)

    def _function(self, found: Kernel, card: Card) -> int:
        self._bring(found.library, card, "loading a function")
        if card.index not in found.functions:
            found.functions[card.index] = self.machine.add(Function(found, card))
        return found.functions[card.index]

    def _bring(self, library: Library, card: Card, name: str) -> None:
        """Measured: code reaches the device only when nothing runs there."""
        if card.index not in library.loaded_on:
            self._drain(name, [card])
            library.loaded_on.add(card.index)

    @call("cuFuncGetAttribute", "handle")
    def function_attribute(self, function: int, attribute: int) -> int:
        """Return an attribute of a function."""
        value: int = self.machine.find(Function, function).get(attribute)
        return value

    @call("cuFuncSetAttribute", "handle")
    def set_function_attribute(self, function: int, attribute: int, value: int) -> None:
        """Set an attribute of a function."""
        self.machine.find(Function, function).set(attribute, value)

    @call("cuLaunchKernel", "handle")
    def launch(self, launch: Launch, stream: int) -> None:
        """Launch a kernel."""
        place = self._stream(stream)
        if self.machine.is_a(Kernel, launch.function):  # a kernel does for a function, and is loaded now if need be
            function = self._function(self.machine.find(Kernel, launch.function), place.card)
            launch = launch._replace(function=function)
        work = launch_work(self.machine, launch)
        self._queue_up(place.card)
        place.put(lambda: work(place.card), 1)
