"""Ask every fact of the card, or of the simulation, and write the answers down.

    python tests/drivers/cuda/contract/record.py --output h200.json --date 2026-01-31
    python tests/drivers/cuda/contract/record.py --output simulated.json --simulated --only pool

Nothing can hang it: each fact has a time limit, after which its process is ended and the next fact gets a new one. The
file is written anew after every answer. `TIDEGATE_CONTRACT_GRACE` is how long, in seconds, a call is watched before it
counts as blocking.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from registry import Fact, load
from workers import Worker, ask, serve


def main() -> None:
    """Run the command."""
    options = _options()
    if options.serve:
        serve(options.simulated)
        return
    facts = [fact for fact in load().values() if not options.only or any(part in fact.name for part in options.only)]
    if options.names:
        print("\n".join(fact.name for fact in facts))
        return
    if options.list:
        print("\n".join(f"{fact.name}: {fact.sentence}" for fact in facts), f"\n{len(facts)} facts")
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TIDEGATE_CONTRACT_CACHE"] = folder
        _record(facts, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the answers of the CUDA driver.")
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    parser.add_argument("--simulated", action="store_true", help="ask the simulation instead of the card")
    parser.add_argument("--only", action="append", default=[], help="only facts with this in their names; repeatable")
    parser.add_argument("--compare", type=Path, help="a record to compare with; differences are printed")
    parser.add_argument("--date", default="", help="the date to write into the record")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for each fact")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds for all facts; 0: no limit")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; on a card 1")
    parser.add_argument("--list", action="store_true", help="print the facts and end")
    parser.add_argument("--names", action="store_true", help="print only their names and end")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _record(facts: list[Fact], options: argparse.Namespace) -> None:
    begun, answers = time.monotonic(), {}
    record: dict[str, Any] = {**_description(options.simulated), "date": options.date, "facts": []}
    for name, result in _answers(facts, options):
        answers[name] = result
        print(f"[{time.monotonic() - begun:6.1f} s] {name}: {json.dumps(result)}", flush=True)
        record["facts"] = [
            {"name": fact.name, "sentence": fact.sentence, "result": answers[fact.name]}
            for fact in sorted(facts, key=lambda fact: fact.name)
            if fact.name in answers
        ]
        _write(options.output, record)
        if options.budget and time.monotonic() - begun > options.budget:
            print("no time left: the record is incomplete")
            break
    _summarise(answers, options)


def _description(simulated: bool) -> dict[str, Any]:
    worker = Worker("describe", simulated, {})
    try:
        message = worker.next(120)
        message = worker.next(60) if "started" in message else message
    finally:
        worker.end()
    if "result" not in message:
        sys.exit(f"nothing to ask: {message}")
    return message["result"]


def _answers(facts: list[Fact], options: argparse.Namespace) -> Any:
    """Give answers as they come: facts that share processes, in as many as there may be, and the others."""
    together = [fact.name for fact in facts if not fact.alone]
    batches = [(together[start :: options.jobs], {}) for start in range(options.jobs)]
    batches += [([fact.name], fact.environment) for fact in facts if fact.alone]
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work(names: list[str], environment: Mapping[str, str | None]) -> None:
        for answer in ask(names, options.simulated, options.limit, environment):
            answers.put(answer)

    with ThreadPoolExecutor(options.jobs) as executor:
        for batch in batches:
            executor.submit(work, *batch)
        try:
            for _ in facts:
                yield answers.get()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _write(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def broken(result: Any) -> bool:
    """Whether a result is no answer."""
    return isinstance(result, dict) and bool({"raised", "hung", "died"} & result.keys())


def _summarise(answers: dict[str, Any], options: argparse.Namespace) -> None:
    unanswered = [name for name, result in answers.items() if broken(result)]
    print(f"\n{len(answers)} facts, {len(unanswered)} without an answer")
    for name in unanswered:
        print(f"  {name}: {json.dumps(answers[name])}")
    if options.compare is not None:
        _compare(answers, json.loads(options.compare.read_text(encoding="utf-8")))


def _compare(answers: dict[str, Any], other: dict[str, Any]) -> None:
    recorded = {fact["name"]: fact["result"] for fact in other["facts"]}
    differing = [name for name in answers if name in recorded and answers[name] != recorded[name]]
    print(f"{len(differing)} differ from the record")
    for name in differing:
        print(f"  {name}:\n    here     {json.dumps(answers[name])}\n    recorded {json.dumps(recorded[name])}")


if __name__ == "__main__":
    main()
