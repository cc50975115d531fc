"""Why a wait does not end: the very lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest

import tidegate as tg

LIMIT = 30.0


def line() -> str:
    """This file and the line of the call."""
    return f"{__file__}:{sys._getframe(1).f_lineno}"


def explained(points: Iterable[tg.Timepoint]) -> str:
    """What a wait for several says when its time is over."""
    with pytest.raises(tg.DeadlineExceededError) as caught:
        tg.wait_all(points, 0)
    first, _, rest = str(caught.value).partition("\n")
    assert first == "not reached within 0 s"
    return rest


QUEUE = "queue 'compute' of device 'dev'"


def test_a_reached_timepoint_is_told_with_its_payload() -> None:
    semaphore = tg.Semaphore(5, label="s")
    assert semaphore.at(5).explain() == "semaphore 's' has reached 5: its payload is 5"
    assert tg.explain(semaphore.at(3)) == "semaphore 's' has reached 3: its payload is 5"


def test_a_failed_timepoint_is_told_with_its_error_but_the_past_stands() -> None:
    semaphore = tg.Semaphore(5, label="s")
    semaphore.fail(ValueError("broken"))
    assert semaphore.at(6).explain() == "semaphore 's' failed before 6: ValueError: broken"
    assert semaphore.at(5).explain() == "semaphore 's' has reached 5: its payload is 5"


def test_an_unpromised_signal_is_told_with_the_line_of_the_semaphore() -> None:
    semaphore, made = tg.Semaphore(2, label="s"), line()
    assert (
        semaphore.at(9).explain() == f"semaphore 's' at 9 (payload 2): nobody has promised this signal; made at {made}"
    )


def test_an_unpromised_signal_above_all_claims_names_the_highest(device: tg.Device) -> None:
    gate = tg.Semaphore(label="gate")
    semaphore, made = tg.Semaphore(label="s"), line()
    for value in (2, 4, 3):
        device.queue().barrier(wait=gate.at(1), signal=semaphore.at(value))
    assert semaphore.at(5).explain() == (
        f"semaphore 's' at 5 (payload 0): nobody has promised this signal, the highest claim is 4; made at {made}"
    )


def test_a_held_chain_is_told_link_by_link_down_to_the_missing_signal(device: tg.Device) -> None:
    queue = device.queue()
    gate, made = tg.Semaphore(label="gate"), line()
    end = tg.Semaphore(label="end")
    first, first_at = queue.host_call(len, (), wait=gate.at(3)), line()
    _second, second_at = queue.barrier(wait=first, signal=end.at(1)), line()
    assert end.at(1).explain().split("\n") == [
        f"semaphore 'end' at 1 (payload 0): to be signalled by barrier on {QUEUE} ({second_at}), held",
        f"to be signalled by host_call on {QUEUE} ({first_at}), held",
        f"semaphore 'gate' at 3 (payload 0): nobody has promised this signal; made at {made}",
    ]
    assert first.explain().split("\n") == [
        f"to be signalled by host_call on {QUEUE} ({first_at}), held",
        f"semaphore 'gate' at 3 (payload 0): nobody has promised this signal; made at {made}",
    ]


def test_a_timepoint_below_a_claim_is_signalled_by_the_lowest_claim_above_it(device: tg.Device) -> None:
    queue, gate, end = device.queue(), tg.Semaphore(label="gate"), tg.Semaphore(label="end")
    queue.barrier(wait=gate.at(1), signal=end.at(9))
    _near, near_at = queue.barrier(wait=gate.at(1), signal=end.at(5)), line()
    told = end.at(3).explain().split("\n")
    assert told[0] == f"semaphore 'end' at 3 (payload 0): to be signalled by barrier on {QUEUE} ({near_at}), held"
    exact = end.at(9).explain().split("\n")
    assert near_at not in exact[0]


def test_every_unmet_wait_of_a_submission_is_told_in_order_and_met_ones_are_not(device: tg.Device) -> None:
    met, one, two = tg.Semaphore(1, label="met"), tg.Semaphore(label="one"), tg.Semaphore(label="two")
    joined = device.queue().barrier(wait=[met.at(1), one.at(1), two.at(2)])
    told = joined.explain().split("\n")
    assert len(told) == 3
    assert told[1].startswith("semaphore 'one' at 1 (payload 0): nobody has promised this signal")
    assert told[2].startswith("semaphore 'two' at 2 (payload 0): nobody has promised this signal")


def test_a_submission_that_two_ways_lead_to_is_told_with_its_waits_once(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore(label="gate")
    left, right, end = tg.Semaphore(label="left"), tg.Semaphore(label="right"), tg.Semaphore(label="end")
    root = queue.barrier(wait=gate.at(1))
    queue.barrier(wait=root, signal=left.at(1))
    queue.barrier(wait=root, signal=right.at(1))
    queue.barrier(wait=[left.at(1), right.at(1)], signal=end.at(1))
    told = end.at(1).explain().split("\n")
    assert [text.split(":")[0].split(" (")[0] for text in told[:2]] == [
        "semaphore 'end' at 1",
        "semaphore 'left' at 1",
    ]
    assert sum("semaphore 'gate'" in text for text in told) == 1
    assert not any("cycle" in text for text in told)
    assert len(told) == 6


def test_a_cycle_is_named_as_one(device: tg.Device) -> None:
    queue, a, b = device.queue(), tg.Semaphore(label="a"), tg.Semaphore(label="b")
    one, one_at = queue.barrier(wait=a.at(1), signal=b.at(1)), line()
    two, two_at = queue.barrier(wait=b.at(1), signal=a.at(1)), line()
    assert a.at(1).explain().split("\n") == [
        f"semaphore 'a' at 1 (payload 0): to be signalled by barrier on {QUEUE} ({two_at}), held",
        f"semaphore 'b' at 1 (payload 0): to be signalled by barrier on {QUEUE} ({one_at}), held",
        f"semaphore 'a' at 1 (payload 0): to be signalled by barrier on {QUEUE} ({two_at}), held"
        " - which waits for this very signal: a cycle that can never resolve",
    ]
    assert one.cancel()
    assert two.done


def test_what_stands_beside_a_cycle_or_beside_what_was_told_is_told_too(device: tg.Device) -> None:
    queue, a, gate = device.queue(), tg.Semaphore(label="a"), tg.Semaphore(label="gate")
    circular = queue.barrier(wait=[a.at(1), gate.at(1)], signal=a.at(1))
    told = circular.explain().split("\n")
    assert len(told) == 3
    assert told[1].endswith("a cycle that can never resolve")
    assert told[2].startswith("semaphore 'gate' at 1 ")
    assert circular.cancel()
    root, other = queue.barrier(wait=gate.at(1)), tg.Semaphore(label="other")
    middle = queue.barrier(wait=root)
    end = queue.barrier(wait=[middle, root, other.at(1)])
    assert end.explain().split("\n")[-1].startswith("semaphore 'other' at 1 ")


def test_what_is_reached_is_told_in_one_line_whatever_is_claimed_above(device: tg.Device) -> None:
    semaphore, gate = tg.Semaphore(5, label="s"), tg.Semaphore()
    device.queue().barrier(wait=gate.at(1), signal=semaphore.at(6))
    assert semaphore.at(5).explain() == "semaphore 's' has reached 5: its payload is 5"


def test_a_claim_above_that_waits_for_the_value_below_is_a_missing_signal_and_no_cycle(device: tg.Device) -> None:
    queue, semaphore = device.queue(), tg.Semaphore(label="s")
    queue.barrier(wait=semaphore.at(1), signal=semaphore.at(2))
    told = semaphore.at(2).explain().split("\n")
    assert len(told) == 2
    assert "nobody has promised this signal, the highest claim is 2" in told[1]


@pytest.mark.parametrize(("links", "left_out"), [(36, 0), (37, 2), (1000, 965)])
def test_the_middle_of_a_long_chain_is_elided_and_the_last_link_is_always_shown(
    device: tg.Device, links: int, left_out: int
) -> None:
    queue, chain = device.queue(), tg.Semaphore(label="chain")
    for value in range(1, links + 1):
        queue.barrier(wait=chain.at(value), signal=chain.at(value + 1))
    told = chain.at(links + 1).explain().split("\n")
    assert told[0].startswith(f"semaphore 'chain' at {links + 1} ")
    assert told[-1].startswith("semaphore 'chain' at 1 (payload 0): nobody has promised this signal")
    if left_out:
        assert len(told) == 37
        assert told[24] == f"... {left_out} more links ..."
        assert told[23].startswith(f"semaphore 'chain' at {links + 1 - 23} ")
        assert told[25].startswith("semaphore 'chain' at 12 ")
    else:
        assert len(told) == links + 1
    chain.signal(1)
    chain.wait(links + 1, LIMIT)


def test_what_an_issued_submission_does_is_told(device: tg.Device) -> None:
    began, go = tg.Semaphore(), tg.Semaphore()

    def call() -> None:
        began.signal(1)
        go.wait(1, LIMIT)

    running, made = device.queue().host_call(call), line()
    began.wait(1, LIMIT)
    assert running.explain() == f"to be signalled by host_call on {QUEUE} ({made}), issued and not over yet"
    go.signal(1)
    running.wait(LIMIT)
    assert running.explain() == f"host_call on {QUEUE} ({made}) has reached 1: its payload is 1"


def test_an_allocation_that_waits_for_memory_says_so() -> None:
    with tg.open_device("cpu?workers=1&memory=1KiB", label="small") as device:
        queue, gate = device.queue(), tg.Semaphore()
        first = device.allocate(1024)
        queue.free(first, wait=gate.at(1))
        second = queue.allocate(1024)
        assert second.ready.explain().endswith("ready, but waiting for memory")
        gate.signal(1)
        second.ready.wait(LIMIT)
        device.close(LIMIT)


def test_a_deadline_tells_the_time_and_each_missing_signal_and_a_poll_makes_no_text_until_read() -> None:
    reached, missing, made = tg.Semaphore(1, label="there"), tg.Semaphore(label="missing"), line()
    points = [reached.at(1), missing.at(2)]
    want = f"semaphore 'missing' at 2 (payload 0): nobody has promised this signal; made at {made}"
    with pytest.raises(tg.DeadlineExceededError) as slow:
        tg.wait_all(points, 0.0005)
    assert str(slow.value) == f"not reached within 0.0005 s\n{want}"
    with pytest.raises(tg.DeadlineExceededError) as poll:
        tg.wait_all(points, 0)
    missing.signal(1)
    assert str(poll.value) == f"not reached within 0 s\n{want.replace('payload 0', 'payload 1')}"
    assert str(slow.value) == f"not reached within 0.0005 s\n{want}"
    assert (slow.value.timeout, poll.value.timeout) == (0.0005, 0.0)


@pytest.mark.parametrize(("count", "left_out"), [(36, 0), (37, 0), (38, 2), (100, 64)])
def test_of_more_than_37_lines_the_first_24_and_the_last_12_are_kept(count: int, left_out: int) -> None:
    gates = [tg.Semaphore(label=f"gate {number}") for number in range(count)]
    lines = explained([gate.at(1) for gate in gates]).splitlines()
    told = [line.split("'")[1] if "'" in line else line for line in lines]
    names = [f"gate {number}" for number in range(count)]
    if left_out:
        names[24:-12] = [f"... {left_out} more links ..."]
    assert told == names


def test_what_waits_on_the_timeline_for_as_much_itself_is_no_help_from_above(device: tg.Device) -> None:
    """In a chain, whatever was submitted behind: the first signal is missing, and nothing goes round in a circle."""
    queue, chain = device.queue(), tg.Semaphore(label="chain")
    for value in range(1, 9):
        queue.barrier(wait=chain.at(value), signal=chain.at(value + 1))
    for value in range(1, 10):
        told = chain.at(value).explain().split("\n")
        assert len(told) == value
        assert told[-1].startswith("semaphore 'chain' at 1 (payload 0): nobody has promised this signal, the highest")
    chain.fail(ValueError())


def test_a_circle_by_way_of_a_claim_above_is_a_missing_signal(device: tg.Device) -> None:
    """Two timelines in turn, the first signal left to the host: the next claim above it waits for that too."""
    queue, ping = device.queue(), tg.Semaphore(label="ping")
    pong, made = tg.Semaphore(label="pong"), line()
    for value in range(1, 5):
        _work, at = queue.barrier(wait=pong.at(value), signal=ping.at(value)), line()
        queue.barrier(wait=ping.at(value), signal=pong.at(value + 1))
    for value in range(1, 5):
        text = ping.at(value).explain()
        assert "cycle" not in text
        assert "nobody has promised this signal" in text.split("\n")[-1]
        assert "semaphore 'pong' at 1" in text.split("\n")[-1]
    told = ping.at(1).explain().split("\n")
    assert len(told) == 3
    assert told[2] == (
        f"semaphore 'ping' at 1 (payload 0): to be signalled by barrier on {QUEUE} ({at}), held"
        f" - which waits for semaphore 'pong' at 1: nobody has promised this signal; made at {made}"
    )
    pong.fail(ValueError())


def test_a_cycle_beyond_a_claim_above_is_one(device: tg.Device) -> None:
    """The way from above leads into the circle, but the circle does not go through it."""
    queue, a, b, c = device.queue(), tg.Semaphore(label="a"), tg.Semaphore(label="b"), tg.Semaphore(label="c")
    one = queue.barrier(wait=b.at(1), signal=a.at(5))
    queue.barrier(wait=c.at(1), signal=b.at(1))
    queue.barrier(wait=b.at(1), signal=c.at(1))
    told = a.at(3).explain().split("\n")
    assert [text.split("'")[1] for text in told] == ["a", "b", "c", "b"]
    assert told[-1].endswith("a cycle that can never resolve")
    one.cancel()
    b.fail(ValueError())


def test_a_claim_above_that_waits_for_less_on_the_timeline_brings_what_is_between(device: tg.Device) -> None:
    queue, steps, gate = device.queue(), tg.Semaphore(label="steps"), tg.Semaphore(label="gate")
    queue.barrier(wait=gate.at(1), signal=steps.at(10))
    for value in range(20, 60, 10):
        queue.barrier(wait=steps.at(value - 15), signal=steps.at(value))
    told = steps.at(45).explain().split("\n")
    assert [text.split(" (")[0] for text in told] == [
        "semaphore 'steps' at 45",
        "semaphore 'steps' at 35",
        "semaphore 'steps' at 25",
        "semaphore 'steps' at 15",
        "semaphore 'steps' at 5",
        "semaphore 'gate' at 1",
    ]
    gate.signal(1)
    steps.wait(50, LIMIT)


def test_what_several_targets_lead_to_is_told_with_the_last(device: tg.Device) -> None:
    chain, other, made = tg.Semaphore(label="chain"), tg.Semaphore(label="other"), line()
    for value in (1, 2, 3):
        device.queue().barrier(wait=chain.at(value), signal=chain.at(value + 1))

    def told(*targets: tg.Timepoint) -> list[str]:
        text = explained(targets)
        assert text.endswith(f"made at {made}")
        return [link.split(" (")[0].split(" ", 1)[1] for link in text.split("\n")]

    assert told(chain.at(2), chain.at(4), chain.at(3)) == [f"'chain' at {value}" for value in (2, 4, 3, 3, 2, 1)]
    assert told(chain.at(4), chain.at(3), chain.at(2)) == [f"'chain' at {value}" for value in (4, 3, 2, 3, 2, 1)]
    assert told(chain.at(3), other.at(1)) == ["'chain' at 3", "'chain' at 2", "'chain' at 1", "'other' at 1"]
    chain.fail(ValueError())


def test_the_cycle_of_one_target_is_named_beside_other_targets(device: tg.Device) -> None:
    queue, a, b, gate = device.queue(), tg.Semaphore(label="a"), tg.Semaphore(label="b"), tg.Semaphore(label="gate")
    one = queue.barrier(wait=a.at(1), signal=b.at(1))
    queue.barrier(wait=b.at(1), signal=a.at(1))
    for order in ([a, gate], [gate, a], [a, b], [b, a, gate]):
        text = explained([semaphore.at(1) for semaphore in order])
        assert text.count("a cycle that can never resolve") == 1
    one.cancel()


def test_a_second_way_to_what_the_first_way_told_is_no_cycle(device: tg.Device) -> None:
    queue, gate, one, two, three = device.queue(), tg.Semaphore(), tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    first = queue.barrier(wait=gate.at(1), signal=one.at(1))
    queue.barrier(wait=one.at(1), signal=two.at(1))
    last = queue.barrier(wait=[one.at(1), two.at(1)], signal=three.at(1))
    deep = queue.barrier(wait=[three.at(1), two.at(1), one.at(1)])
    for submission in (last, deep):
        text = submission.explain()
        assert "cycle" not in text
        assert text.count("nobody has promised this signal") == 1
    first.cancel()
