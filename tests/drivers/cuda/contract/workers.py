"""Processes in which facts are asked: one for many facts, a fresh one after each that breaks, hangs or dies."""

from __future__ import annotations

import json
import os
import platform
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from registry import FACTS, load

MARK = "@fact "
STARTING = 120.0
"""Seconds until a process must have started."""

#: As the driver sets it; a fact about connections has its own.
ENVIRONMENT: dict[str, str | None] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_LAUNCH_BLOCKING": None,
    "CUDA_MODULE_LOADING": None,
    "PYTHONUNBUFFERED": "1",
}


def open_native(simulated: bool) -> tuple[Any, Any]:
    """Return the native layer and the compiler. Calls give the GIL away, since some are to be seen blocking."""
    if simulated:
        from tidegate.testing import cuda_simulated

        return cuda_simulated.native(), cuda_simulated.SimulatedNvrtc()
    from tidegate.drivers.cuda._native import Native
    from tidegate.drivers.cuda._nvrtc import Nvrtc

    return Native(release_gil=True), Nvrtc()


def describe(native: Any, compiler: Any) -> dict[str, Any]:
    """Return what is asked: versions and device."""
    native.init()
    return {
        "device": native.device_name(native.device(0)),
        "driver version": native.driver_version(),
        "compiler version": list(compiler.version()),
        "python": platform.python_version(),
    }


def serve(simulated: bool) -> None:
    """Answer the questions that standard input names, then end at once, whatever the driver still holds."""
    asked = json.load(sys.stdin)
    native, compiler = open_native(simulated)
    _tell({"started": True})
    if asked == "describe":
        _tell({"name": asked, "result": describe(native, compiler)})
    else:
        load()
        for name in asked:
            result = _answer(name, native, compiler)
            last = not FACTS[name].alone and not _is_well(native)
            _tell({"name": name, "result": result, "last": last})
            if last:
                break
    sys.stdout.flush()
    os._exit(0)


def _answer(name: str, native: Any, compiler: Any) -> Any:
    try:
        return FACTS[name](native, compiler)
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}


def _is_well(native: Any) -> bool:
    """Whether the context outlived a fact that was not expected to break it."""
    try:
        native.destroy_event(native.create_event())
    except Exception:
        return False
    return True


def _tell(message: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


class Worker:
    """A process that answers."""

    def __init__(self, asked: Any, simulated: bool, environment: Mapping[str, str | None]) -> None:
        script = Path(__file__).with_name("record.py")
        command = [sys.executable, str(script), "--serve", *(["--simulated"] if simulated else [])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=_environment(environment),
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked))
        self._process.stdin.close()
        self._errors: list[str] = []
        self._told: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._listen_to_errors, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._told.put(json.loads(line.removeprefix(MARK)))
        self._told.put(None)

    def _listen_to_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line]

    def next(self, limit: float) -> dict[str, Any]:
        """Return the next message; a process that is late or dead says so."""
        try:
            message = self._told.get(timeout=limit)
        except queue.Empty:
            return {"hung": limit}
        if message is None:
            return {"died": self._process.wait(10), "errors": "".join(self._errors)[-2000:]}
        return message

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(30)


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    wanted: dict[str, str | None] = {**os.environ, **ENVIRONMENT, **changes}
    return {name: value for name, value in wanted.items() if value is not None}


def ask(
    names: list[str], simulated: bool, limit: float, environment: Mapping[str, str | None]
) -> Iterator[tuple[str, Any]]:
    """Ask facts one after the other and give the answers as they come."""
    left = list(names)
    while left:
        worker = Worker(left, simulated, environment)
        try:
            message = worker.next(STARTING)
            if "started" in message:
                message = worker.next(limit)
            while left and message.get("name") == left[0]:
                yield left.pop(0), message["result"]
                if message["last"] or not left:
                    break
                message = worker.next(limit)
            else:
                yield left.pop(0), message
        finally:
            worker.end()
