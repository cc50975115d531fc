"""What graphs and their instances do when they run."""

from __future__ import annotations

from registry import fact
from rig import CYCLES, LIMIT, Rig, code, soon


@fact()
def fact_arguments_of_a_node_are_copied(rig: Rig) -> int:
    """Which value does a node store whose argument was changed after it was added?"""
    stream, words, graph = rig.stream(), rig.words(1), rig.graph()
    work = rig.call("store", words.at(0), 1)
    rig.native.add_kernel_node(graph, [], work)
    work.keep[0][1] = 2
    rig.native.launch_graph(rig.instance(graph), stream)
    rig.synchronize(stream)
    return words[0]


@fact()
def fact_arguments_of_a_changed_node_are_copied(rig: Rig) -> int:
    """Which value does a node store whose argument was changed after it was set?"""
    stream, words, graph = rig.stream(), rig.words(1), rig.graph()
    node = rig.native.add_kernel_node(graph, [], rig.call("store", words.at(0), 1))
    instance, work = rig.instance(graph), rig.call("store", words.at(0), 2)
    rig.native.set_kernel_node(instance, node, work)
    work.keep[0][1] = 3
    rig.native.launch_graph(instance, stream)
    rig.synchronize(stream)
    return words[0]


@fact()
def fact_a_change_does_not_reach_a_launch_before_it(rig: Rig) -> list[int]:
    """What do two launches of an instance append, changed between them while the first is not yet begun?"""
    stream, log, graph = rig.stream(), rig.words(4), rig.graph()
    node = rig.native.add_kernel_node(graph, [], rig.call("append", log.at(0), 1))
    instance = rig.instance(graph)
    latch = rig.latch().run(stream)
    rig.native.launch_graph(instance, stream)
    rig.native.set_kernel_node(instance, node, rig.call("append", log.at(0), 2))
    rig.native.launch_graph(instance, stream)
    latch.open()
    rig.synchronize(stream)
    return log.list()


@fact()
def fact_a_change_does_not_reach_a_running_launch(rig: Rig) -> list[int]:
    """What does a launch append whose later node is changed while an earlier one runs, and what the next one?"""
    stream, log, graph, latch = rig.stream(), rig.words(4), rig.graph(), rig.latch()
    first = rig.native.add_kernel_node(graph, [], latch.launch())
    node = rig.native.add_kernel_node(graph, [first], rig.call("append", log.at(0), 1))
    instance = rig.instance(graph)
    rig.native.launch_graph(instance, stream)
    latch.wait_until_running()
    rig.native.set_kernel_node(instance, node, rig.call("append", log.at(0), 2))
    latch.open()
    rig.native.launch_graph(instance, stream)
    rig.synchronize(stream)
    return log.list()


@fact()
def fact_changes_beside_a_running_launch_return(rig: Rig) -> dict[str, bool]:
    """Do changing a node, and launching the instance once more, return while the instance runs?"""
    stream, words, graph, latch = rig.stream(), rig.words(1), rig.graph(), rig.latch()
    first = rig.native.add_kernel_node(graph, [], latch.launch())
    node = rig.native.add_kernel_node(graph, [first], rig.call("add", words.at(0), 1))
    instance, changed = rig.instance(graph), rig.call("add", words.at(0), 2)
    rig.native.launch_graph(instance, stream)
    latch.wait_until_running()
    setting = rig.returns(lambda: rig.native.set_kernel_node(instance, node, changed))
    enabling = rig.returns(lambda: rig.native.enable_node(instance, node, True))
    return {
        "set": setting,
        "enable": enabling,
        "launch": rig.returns(lambda: rig.native.launch_graph(instance, stream)),
    }


@fact()
def fact_an_instance_on_two_streams(rig: Rig) -> dict[str, int]:
    """How many of two launches of one instance on two streams run while its kernel is held up, and in the end?"""
    first, second, graph, latch = rig.stream(), rig.stream(), rig.graph(), rig.latch()
    rig.native.add_kernel_node(graph, [], latch.launch())
    instance = rig.instance(graph)
    rig.native.launch_graph(instance, first)
    latch.wait_until_running()
    attempt = rig.attempt(lambda: rig.native.launch_graph(instance, second))
    soon(lambda: latch.arrivals == 2)
    early = latch.arrivals
    latch.open()
    attempt.finish()
    rig.synchronize(first, second)
    return {"early": early, "in the end": latch.arrivals}


@fact()
def fact_two_instances_on_two_streams(rig: Rig) -> list[int]:
    """Do two instances of one graph run at the same time?"""
    first, second, graph, met = rig.stream(), rig.stream(), rig.graph(), rig.words(4)
    node = rig.native.add_kernel_node(graph, [], rig.call("meet", met.at(0), met.at(1), met.at(2), CYCLES // 4))
    one, other = rig.instance(graph), rig.instance(graph)
    rig.native.set_kernel_node(other, node, rig.call("meet", met.at(1), met.at(0), met.at(3), CYCLES // 4))
    rig.native.launch_graph(one, first)
    rig.native.launch_graph(other, second)
    rig.synchronize(first, second)
    return met.list()[2:]


@fact()
def fact_independent_branches_run_at_the_same_time(rig: Rig) -> list[int]:
    """Do two nodes without an edge between them meet?"""
    stream, graph, met = rig.stream(), rig.graph(), rig.words(4)
    rig.native.add_kernel_node(graph, [], rig.call("meet", met.at(0), met.at(1), met.at(2), CYCLES // 4))
    rig.native.add_kernel_node(graph, [], rig.call("meet", met.at(1), met.at(0), met.at(3), CYCLES // 4))
    rig.native.launch_graph(rig.instance(graph), stream)
    rig.synchronize(stream)
    return met.list()[2:]


@fact()
def fact_nodes_run_in_the_order_of_their_edges(rig: Rig) -> list[int]:
    """In what order do the nodes of a chain run that was added against the order of its values?"""
    stream, log, graph = rig.stream(), rig.words(8), rig.graph()
    after: list[int] = []
    for value in (5, 4, 3, 2, 1):
        after = [rig.native.add_kernel_node(graph, after, rig.call("append", log.at(0), value))]
    rig.native.launch_graph(rig.instance(graph), stream)
    rig.synchronize(stream)
    return log.list()[: 1 + log[0]]


@fact()
def fact_an_empty_node_joins(rig: Rig) -> list[int]:
    """Does what comes after an empty node wait for all that is before it?"""
    stream, log, graph, latch = rig.stream(), rig.words(4), rig.graph(), rig.latch()
    held = rig.native.add_kernel_node(graph, [], latch.launch())
    other = rig.native.add_kernel_node(graph, [], rig.call("append", log.at(0), 1))
    joined = rig.native.add_empty_node(graph, [held, other])
    rig.native.add_kernel_node(graph, [joined], rig.call("append", log.at(0), 2))
    rig.native.launch_graph(rig.instance(graph), stream)
    latch.wait_until_running()
    soon(lambda: log[0] == 2)
    early = log[0]
    latch.open()
    rig.synchronize(stream)
    return [early, *log.list()[:3]]


@fact()
def fact_an_empty_graph(rig: Rig) -> dict[str, int]:
    """Can a graph without nodes be instantiated and launched?"""
    stream, graph = rig.stream(), rig.graph()
    instantiated = code(lambda: rig.instance(graph))
    launched = code(lambda: rig.native.launch_graph(rig.instance(graph), stream)) if not instantiated else -1
    return {"instantiate": instantiated, "launch": launched, "synchronize": code(lambda: rig.synchronize(stream))}


@fact()
def fact_a_graph_is_one_entry_in_the_order_of_its_stream(rig: Rig) -> list[int]:
    """Does a graph run after what is before it on its stream and before what is behind it?"""
    stream, log, graph = rig.stream(), rig.words(4), rig.graph()
    rig.native.add_kernel_node(graph, [], rig.call("append", log.at(0), 2))
    instance = rig.instance(graph)
    latch = rig.latch().run(stream)
    rig.launch(stream, "append", log.at(0), 1)
    rig.native.launch_graph(instance, stream)
    rig.launch(stream, "append", log.at(0), 3)
    latch.open()
    rig.synchronize(stream)
    return log.list()


@fact()
def fact_launches_of_an_instance_come_one_after_the_other(rig: Rig) -> int:
    """How far do fifty launches of an instance on one stream count?"""
    stream, words, graph = rig.stream(), rig.words(1), rig.graph()
    rig.native.add_kernel_node(graph, [], rig.call("add", words.at(0), 1))
    instance = rig.instance(graph)
    for _ in range(50):
        rig.native.launch_graph(instance, stream)
    rig.synchronize(stream)
    return words[0]


@fact()
def fact_a_node_switched_off(rig: Rig) -> list[int]:
    """What do three launches of an instance count with a node on, off and on again?"""
    stream, words, graph, found = rig.stream(), rig.words(1), rig.graph(), []
    node = rig.native.add_kernel_node(graph, [], rig.call("add", words.at(0), 1))
    instance = rig.instance(graph)
    for enabled in (True, False, True):
        rig.native.enable_node(instance, node, enabled)
        rig.native.launch_graph(instance, stream)
        rig.synchronize(stream)
        found.append(words[0])
    return found


@fact()
def fact_fills_and_copies_switched_off(rig: Rig) -> dict[str, int]:
    """Can fill nodes, copy nodes and empty nodes be switched off?"""
    graph, device, words, native = rig.graph(), rig.memory(64), rig.words(2), rig.native
    fill = native.add_fill_node(graph, [], device, 1, 4, 2, rig.context)
    copy = native.add_copy_node(graph, [fill], words.at(0), device, 8, rig.context)
    empty = native.add_empty_node(graph, [copy])
    instance = rig.instance(graph)
    nodes = {"fill": fill, "copy": copy, "empty": empty}
    return {name: code(lambda node=node: native.enable_node(instance, node, False)) for name, node in nodes.items()}


@fact()
def fact_order_passes_through_a_node_switched_off(rig: Rig) -> dict[str, bool]:
    """Does a node still wait for the one before a node that is switched off?"""
    stream, words, graph, latch = rig.stream(), rig.words(2), rig.graph(), rig.latch()
    first = rig.native.add_kernel_node(graph, [], latch.launch())
    middle = rig.native.add_kernel_node(graph, [first], rig.call("store", words.at(0), 1))
    rig.native.add_kernel_node(graph, [middle], rig.call("store", words.at(1), 1))
    instance = rig.instance(graph)
    rig.native.enable_node(instance, middle, False)
    rig.native.launch_graph(instance, stream)
    latch.wait_until_running()
    early = soon(lambda: words[1] == 1)
    latch.open()
    rig.synchronize(stream)
    return {"early": early, "last": words[1] == 1, "middle": words[0] == 1}


@fact()
def fact_an_instance_outlives_its_graph(rig: Rig) -> int:
    """Does an instance run whose graph is destroyed?"""
    stream, words, graph = rig.stream(), rig.words(1), rig.native.create_graph()
    rig.native.add_kernel_node(graph, [], rig.call("store", words.at(0), 1))
    instance = rig.instance(graph)
    rig.native.destroy_graph(graph)
    rig.native.launch_graph(instance, stream)
    rig.synchronize(stream)
    return words[0]


@fact()
def fact_an_instance_does_not_follow_its_graph(rig: Rig) -> list[int]:
    """Does an instance run nodes that were added to its graph later?"""
    stream, words, graph = rig.stream(), rig.words(2), rig.graph()
    rig.native.add_kernel_node(graph, [], rig.call("store", words.at(0), 1))
    instance = rig.instance(graph)
    rig.native.add_kernel_node(graph, [], rig.call("store", words.at(1), 1))
    rig.native.launch_graph(instance, stream)
    rig.synchronize(stream)
    return words.list()


@fact()
def fact_an_instance_destroyed_while_it_runs(rig: Rig) -> dict[str, object]:
    """Does destroying an instance return while it runs, and does it run to its end?"""
    stream, words, graph, latch = rig.stream(), rig.words(1), rig.graph(), rig.latch()
    first = rig.native.add_kernel_node(graph, [], latch.launch())
    rig.native.add_kernel_node(graph, [first], rig.call("store", words.at(0), 1))
    instance = rig.native.instantiate_graph(graph)
    rig.native.launch_graph(instance, stream)
    latch.wait_until_running()
    attempt = rig.attempt(lambda: rig.native.destroy_graph_instance(instance))
    returned = attempt.returned()
    latch.open()
    attempt.returned(LIMIT)
    rig.synchronize(stream)
    return {"returned": returned, "code": attempt.code, "done": words[0]}


@fact()
def fact_an_instance_destroyed_before_it_runs(rig: Rig) -> dict[str, object]:
    """Does destroying an instance return whose launch waits behind a kernel, and does it run?"""
    stream, words, graph = rig.stream(), rig.words(1), rig.graph()
    rig.native.add_kernel_node(graph, [], rig.call("store", words.at(0), 1))
    instance = rig.native.instantiate_graph(graph)
    latch = rig.latch().run(stream)
    rig.native.launch_graph(instance, stream)
    attempt = rig.attempt(lambda: rig.native.destroy_graph_instance(instance))
    returned = attempt.returned()
    latch.open()
    attempt.returned(LIMIT)
    rig.synchronize(stream)
    return {"returned": returned, "code": attempt.code, "done": words[0]}


@fact()
def fact_a_graph_of_two_thousand_nodes(rig: Rig) -> int:
    """How far does a chain of two thousand nodes count?"""
    stream, words, graph = rig.stream(), rig.words(1), rig.graph()
    after: list[int] = []
    work = rig.call("add", words.at(0), 1)
    for _ in range(2000):
        after = [rig.native.add_kernel_node(graph, after, work)]
    rig.native.launch_graph(rig.instance(graph), stream)
    rig.synchronize(stream)
    return words[0]
