"""The other side of `warm`: a process for each suite, and trials in it from any number of threads."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from changes import switch

TOOLS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Suite:
    """Tests that are run in one way.

    Attributes:
        name: Stands before the ids of its tests; may be empty.
        arguments: For pytest, the tests among them.
        environment: Additions to it.

    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Server:
    """A process that has collected a suite. A context manager: it ends with the block.

    Attributes:
        tests: The ids of what it has collected.

    Raises:
        RuntimeError: the tests cannot be collected.

    """

    def __init__(self, tree: Path, suite: Suite) -> None:
        self.suite = suite
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._writing = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._reached = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._reached.truncate(1 << 20)  # more than there are changes
        path = [str(tree / "src"), str(TOOLS), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "changes.warm", *suite.arguments, f"--rootdir={tree}"],
            cwd=tree,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "PYTHONHASHSEED": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
                switch.REACHED: self._reached.name,
                **suite.environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"the tests cannot be collected:\n{self._logged()}")
        self.tests: list[str] = json.loads(line)["collected"]
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and what it runs."""
        self._process.kill()
        self._process.wait()

    def ask(self, tests: Sequence[str], *, hang: float = 60.0, **request: Any) -> dict[str, Any]:
        """Run tests in a child and wait for the answer; see `warm`.

        Raises:
            RuntimeError: the process has ended.

        """
        number = next(self._numbers)
        answer = self._waiting[number] = queue.SimpleQueue()
        message = {"memory": 16 << 30, **request, "id": number, "tests": tests, "hang": hang}
        with self._writing:
            assert self._process.stdin
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        found = answer.get()
        if "ended" not in found:
            raise RuntimeError(f"a process that tries changes has ended by itself:\n{self._logged()}")
        return found

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).put(answer)
        for waiting in self._waiting.values():
            waiting.put({})

    def _logged(self) -> str:
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace")
