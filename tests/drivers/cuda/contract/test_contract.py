"""The native contract: what the driver of a real card answered, the simulation answers too.

`h200.json` holds the answers of the card, written by `record.py`. Where there is a card it is asked again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
RECORDED = HERE / "h200.json"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def _facts(path: Path) -> dict[str, Any]:
    return {fact["name"]: fact["result"] for fact in json.loads(path.read_text(encoding="utf-8"))["facts"]}


EXPECTED = _facts(RECORDED) if RECORDED.exists() else {}


def _record(output: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "record.py"), "--output", str(output), *arguments],
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return _facts(output)


def _asked_twice(folder: Path, grace: str, *arguments: str) -> dict[str, Any]:
    """Record, and ask again with more patience what came out otherwise than expected.

    A call that was slow on a busy machine looks like one that blocks; with patience it does not.
    """
    found = _record(folder / "first.json", *arguments, TIDEGATE_CONTRACT_GRACE=grace)
    doubted = [name for name, result in EXPECTED.items() if found.get(name) != result]
    if not doubted:
        return found
    only = [part for name in doubted for part in ("--only", name)]
    return found | _record(folder / "second.json", *arguments, *only, "--limit", "60", TIDEGATE_CONTRACT_GRACE="3")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    # What blocks in the simulation does so from the start; most of the time goes into waiting to be sure of that.
    return _asked_twice(tmp_path_factory.mktemp("simulated"), "0.1", "--simulated", "--jobs", "4")


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not _has_card():
        pytest.skip("there is no NVIDIA GPU")
    return _asked_twice(tmp_path_factory.mktemp("card"), "0.5")


def _has_card() -> bool:
    from tidegate.drivers.cuda._native import Native, NativeError

    try:
        native = Native()
        native.init()
        return native.device_count() > 0
    except (OSError, AttributeError, NativeError):
        return False


def _names() -> Sequence[str]:
    done = subprocess.run(
        [sys.executable, str(HERE / "record.py"), "--names"], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.split()


def test_every_fact_is_on_record() -> None:
    assert sorted(EXPECTED) == sorted(_names())


def test_there_are_at_least_sixty_facts() -> None:
    assert len(EXPECTED) >= 60


def test_every_fact_on_record_has_an_answer() -> None:
    unanswered = [
        name
        for name, result in EXPECTED.items()
        if isinstance(result, dict) and {"raised", "hung", "died"} & result.keys()
    ]
    assert unanswered == []


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_simulation_answers_as_the_card_did(name: str, simulated: dict[str, Any]) -> None:
    assert simulated[name] == EXPECTED[name]


def test_the_card_answers_as_it_did(card: dict[str, Any]) -> None:
    other = {name: (card[name], result) for name, result in EXPECTED.items() if card[name] != result}
    assert other == {}, "(now, on record)"
