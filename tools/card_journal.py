"""A pytest plugin for `card.py`: writes down what each test did as it happens, and ends the process if one hangs.

| option | does |
| --- | --- |
| `--card-journal FILE` | a line of JSON when a test begins and ends; tests that are in the file already are left out |
| `--card-hang FILE` | where all threads are, of a test that took too long |
| `--card-test-limit SECONDS` | how long that is. Then the process ends at once, also if a call of CUDA keeps the GIL |
| `--card-shard I/N` | only every N-th test, beginning with number I |
| `--card-without FIXTURE` | no test that takes this fixture |
| `--card-keep-context` | keeps CUDA's context for the whole run: to open a device is then a matter of milliseconds |
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, TextIO

import pytest

_LONGEST_TEXT = 6000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("card")
    group.addoption("--card-journal", type=Path)
    group.addoption("--card-hang", type=Path)
    group.addoption("--card-test-limit", type=float, default=60.0)
    group.addoption("--card-shard", default="0/1")
    group.addoption("--card-without", default="")
    group.addoption("--card-keep-context", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--card-keep-context"):
        _keep_context()
    if config.getoption("--card-journal"):
        config.pluginmanager.register(Journal(config), "card-journal")


def _keep_context() -> None:
    """Retain the primary context of the first GPU; before that, ask for as many hardware queues as the driver would."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


class Journal:
    """Keeps the journal of one process."""

    def __init__(self, config: pytest.Config) -> None:
        path: Path = config.getoption("--card-journal")
        self._limit: float = config.getoption("--card-test-limit")
        self._known = {line["test"] for line in _lines(path)}
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._hang: TextIO = config.getoption("--card-hang").open("a", encoding="utf-8")
        self._shard, self._shards = (int(part) for part in config.getoption("--card-shard").split("/"))
        self._without: str = config.getoption("--card-without")

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        mine = items[self._shard :: self._shards]
        if self._without:
            mine = [item for item in mine if self._without not in getattr(item, "fixturenames", ())]
        kept = [item for item in mine if item.nodeid not in self._known]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._write(test=item.nodeid, began=time.time())
        self._hang.write(f"\n== {item.nodeid}\n")
        self._hang.flush()
        faulthandler.dump_traceback_later(self._limit, exit=True, file=self._hang)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._write(test=item.nodeid, ended=time.time())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line: dict[str, Any] = {"test": report.nodeid, "when": report.when, "seconds": round(report.duration, 4)}
        line["outcome"] = report.outcome
        if report.failed:
            line["text"] = report.longreprtext[-_LONGEST_TEXT:]
        elif report.skipped:
            line["why"] = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if report.when == "teardown":
            line["properties"] = dict(report.user_properties)
        self._write(**line)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
