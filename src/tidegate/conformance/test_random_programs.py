"""Random programs: graphs of work drawn from a seed, right by construction, compared with NumPy byte for byte.

`--tidegate-programs` says how many, 100 if not given, shared out evenly among the forms. A program that goes wrong is
made small and printed as text that can be run; see `tidegate.conformance.programs`.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from .programs.generate import generate
from .programs.program import Program
from .programs.run import FORMS, Form, run_seeds
from .programs.source import source
from .programs.wiring import wire
from .subjects import Subject

SEEDS_TO_LOOK_AT = 200


@pytest.fixture
def seeds(pytestconfig: pytest.Config) -> range:
    """The seeds of one form."""
    return range(int(pytestconfig.getoption("--tidegate-programs")) // len(FORMS))


@pytest.mark.rules("M3", "M5", "M14", "M15", "M17", "M18", "M26", "M27", "M30", "M31")
@pytest.mark.needs("work")
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_random_program_does_what_numpy_does(subject: Subject, form: Form, seeds: range) -> None:
    run_seeds(subject, form, seeds)


def unordered(program: Program) -> list[tuple[int, int]]:
    """Return the pairs of steps in conflict of which neither waits for the other."""
    ancestors = program.ancestors()
    return [
        (first.number, second.number)
        for second in program.steps
        for first in program.steps
        if first.number < second.number
        and first.operation.conflicts(second.operation)
        and first.number not in ancestors[second.number]
    ]


@pytest.mark.rules("M15")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_pair_in_conflict_is_ordered_in_a_random_program(form: Form) -> None:
    for seed in range(SEEDS_TO_LOOK_AT):
        assert unordered(generate(seed, threads=form.threads, failures=form.failures)) == []


@pytest.mark.rules("M6")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_semaphore_of_a_random_program_is_signalled_in_one_order(form: Form) -> None:
    for seed in range(SEEDS_TO_LOOK_AT):
        program = generate(seed, threads=form.threads, failures=form.failures)
        ancestors = program.ancestors()
        for signals in wire(program).semaphores:
            for (lower, earlier), (higher, later) in pairwise(signals):
                assert lower < higher
                assert earlier in ancestors[later]


@pytest.mark.rules("M5")
def test_random_programs_have_all_kinds_of_work_and_submit_consumers_before_producers() -> None:
    programs = [
        generate(seed, threads=form.threads, failures=form.failures)
        for form in FORMS
        for seed in range(SEEDS_TO_LOOK_AT)
    ]
    kinds = {step.operation.kind for program in programs for step in program.steps}
    assert kinds == {
        *("allocate", "barrier", "copy", "dispatch", "download", "execute"),
        *("fill", "free", "host_call", "update", "upload"),
    }
    early = [
        number
        for program in programs
        for step in program.steps
        for number in step.after
        if program.step(number).thread == step.thread and program.step(number).turn > step.turn
    ]
    assert len(early) > len(programs)
    assert sum(any(errors for errors in wire(program).must_fail.values()) for program in programs) > len(programs) // 4


@pytest.mark.rules("M38")
def test_a_seed_gives_the_same_program_every_time() -> None:
    for form in FORMS:
        texts = {source(generate(7, threads=form.threads, failures=form.failures)) for _ in range(3)}
        assert len(texts) == 1
