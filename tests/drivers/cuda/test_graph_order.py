"""How commands become nodes and edges: every order that was recorded is kept, in few chains."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.driver import Barrier, Command, Copy, Dispatch, DispatchIndirect, DriverFunction, Fill, SlotSpan, Update
from tidegate.drivers.cuda.graph_order import LANES, does_nothing, weave
from tidegate.drivers.cuda.indirect import split

SLOT = SlotSpan(0)


def fill(*after: int) -> Command:
    return Command(Fill(SLOT, b"\0"), after)


def barrier(*after: int) -> Command:
    return Command(Barrier(), after)


def indirect(*after: int) -> Command:
    return Command(DispatchIndirect(DriverFunction(), SlotSpan(0, 0, 12), (), (), 0), after)


def layers(width: int, count: int) -> list[Command]:
    """Return `count` times `width` commands, with barriers between."""
    commands: list[Command] = []
    behind: tuple[int, ...] = ()
    for _ in range(count):
        begin = len(commands)
        commands += [fill(*behind) for _ in range(width)]
        behind = (len(commands),)
        commands.append(barrier(*range(begin, begin + width)))
    return commands


def ancestors(after: list[tuple[int, ...]]) -> list[set[int]]:
    found: list[set[int]] = []
    for before in after:
        found.append(set(before).union(*(found[index] for index in before)))
    return found


@st.composite
def recordings(draw: st.DrawFn) -> list[Command]:
    commands: list[Command] = []
    for index in range(draw(st.integers(0, 40))):
        after = tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=12)))) if index else ()
        commands.append(barrier(*after) if draw(st.integers(0, 4)) == 0 else fill(*after))
    return commands


@settings(deadline=None)
@given(recordings(), st.integers(1, LANES))
def test_every_recorded_order_is_kept_and_no_node_has_more_edges_than_there_are_lanes(
    commands: list[Command], lanes: int
) -> None:
    places = weave(commands, lanes)
    assert [place.command for place in places] == [
        index for index, command in enumerate(commands) if not isinstance(command.work, Barrier)
    ]
    wanted = ancestors([command.after for command in commands])
    found = ancestors([place.after for place in places])
    place_of = {place.command: index for index, place in enumerate(places)}
    for place, before in zip(places, found, strict=True):
        assert {place_of[index] for index in wanted[place.command] if index in place_of} <= before
        assert len(place.after) == len(set(place.after)) <= lanes


@settings(deadline=None)
@given(recordings())
def test_nothing_runs_at_the_same_time_as_more_than_the_lanes_allow(commands: list[Command]) -> None:
    """The chains cover all nodes: each node but the first of a chain follows another one that has no other heir."""
    places = weave(commands)
    heads = len(places) - len({before for place in places for before in place.after})
    assert heads <= LANES  # nodes that nothing follows
    assert sum(not place.after for place in places) <= LANES


def test_commands_one_after_the_other_are_one_chain() -> None:
    places = weave(layers(1, 50))
    assert [place.after for place in places] == [(), *((index,) for index in range(49))]


def test_commands_without_order_are_as_many_chains_as_there_are_lanes() -> None:
    places = weave([fill() for _ in range(100)])
    assert [place.after for place in places[:LANES]] == [()] * LANES
    assert [place.after for place in places[LANES:]] == [(index,) for index in range(100 - LANES)]


def test_two_at_a_time_stay_two_chains_with_edges_across() -> None:
    places = weave(layers(2, 20))
    for index in range(2, 40):
        first = index - index % 2 - 2
        assert set(places[index].after) == {first, first + 1}


def test_a_wide_layer_behind_a_narrow_one_uses_all_lanes() -> None:
    wide = [fill(*range(0)) for _ in range(LANES)]
    commands = [
        *wide,
        barrier(*range(LANES)),
        fill(LANES),
        barrier(LANES + 1),
        *(fill(LANES + 2) for _ in range(LANES)),
    ]
    places = weave(commands)
    assert all(LANES in place.after for place in places[LANES + 1 :])
    behind = [place.after for place in places[LANES + 1 :]]
    assert len({before for after in behind for before in after}) == LANES  # none of them follows another


def test_what_does_nothing_is_no_node_but_passes_order_on() -> None:
    nothing = Command(Update(SLOT, b""), (0,))
    assert weave([fill(), nothing, fill(1)]) == [(0, ()), (2, (0,))]


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Barrier(), True),
        (Dispatch(DriverFunction(), (3, 0, 1), (), (), 0), True),
        (Dispatch(DriverFunction(), (3, 1, 1), (), (), 0), False),
        (Update(SLOT, b""), True),
        (Update(SLOT, b"x"), False),
        (Fill(SlotSpan(0, 4, 0), b"x"), True),
        (Fill(SLOT, b"x"), False),
        (Copy(SlotSpan(0, 4, 0), SLOT), True),
        (Copy(SLOT, SlotSpan(1)), False),
    ],
)
def test_a_command_is_left_out_only_if_no_table_gives_it_something_to_do(work: object, expected: bool) -> None:
    assert does_nothing(work) is expected  # type: ignore[arg-type]


# Where indirect dispatches split a recording


def parts(commands: list[Command]) -> list[tuple[list[int], int]]:
    return [(plain, len(dispatches)) for plain, dispatches in split(commands)]


def test_a_recording_is_split_at_each_indirect_dispatch() -> None:
    assert parts([fill(), indirect(0), fill(1), indirect(2), fill()]) == [([0], 1), ([2], 1), ([4], 0)]


def test_neighbouring_indirect_dispatches_are_read_together_unless_one_follows_the_other() -> None:
    assert parts([indirect(), indirect(), indirect()]) == [([], 3)]
    assert parts([indirect(), indirect(0), indirect()]) == [([], 1), ([], 2)]
    assert parts([indirect(), barrier(0), indirect(1)]) == [([], 1), ([1], 1)]


def test_a_recording_that_ends_with_an_indirect_dispatch_has_no_empty_rest() -> None:
    assert parts([fill(), indirect()]) == [([0], 1)]
