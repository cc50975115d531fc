"""The simulated Metal takes only selectors that exist, with arguments of their types."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from tidegate.testing.metal_simulated import native
from tidegate.testing.metal_simulated.objects import Metal

from .workbench import LIMIT, Workbench


def refused(bench: Workbench, call: Any, *arguments: Any) -> str:
    """What the call says against its arguments, which it must also record."""
    bench.expected |= {"argument-type", "selector"}
    before = len(bench.metal.violations)
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments)
    assert len(bench.metal.violations) == before + 1
    return str(caught.value)


def test_a_name_that_is_no_selector_is_no_attribute(bench: Workbench) -> None:
    with pytest.raises(AttributeError, match="newBuffer:length: is no known selector"):
        bench.device.newBuffer_length_(1, 2)


def test_a_selector_of_another_class_is_no_attribute(bench: Workbench) -> None:
    with pytest.raises(AttributeError, match="not one of its selectors"):
        bench.device.endEncoding()


def test_attributes_cannot_be_assigned(bench: Workbench) -> None:
    with pytest.raises(AttributeError, match="call setLabel_"):
        bench.queue.label = "mine"


def test_the_simulation_cannot_define_a_selector_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="setNothing: is no known selector"):

        class _Wrong(Metal):
            def setNothing_(self, value: int) -> None: ...


def test_as_many_arguments_as_colons(bench: Workbench) -> None:
    """Rule selector."""
    assert "takes 2 arguments, got 1" in refused(bench, bench.device.newBufferWithLength_options_, 16)
    assert [each.rule.name for each in bench.metal.violations] == ["selector"]


@pytest.mark.parametrize("length", [16.0, True, np.int64(16), "16", None])
def test_an_unsigned_number_is_a_plain_int(bench: Workbench, length: Any) -> None:
    """Rule argument-type."""
    assert "must be an int" in refused(bench, bench.device.newBufferWithLength_options_, length, 0)


@pytest.mark.parametrize("length", [-1, 2**64])
def test_an_unsigned_number_has_64_bits(bench: Workbench, length: int) -> None:
    assert "outside" in refused(bench, bench.device.newBufferWithLength_options_, length, 0)


def test_a_struct_is_a_tuple_of_its_length(bench: Workbench) -> None:
    encoder = bench.compute(bench.commands())
    call = encoder.dispatchThreadgroups_threadsPerThreadgroup_
    assert "MTLSize has 3" in refused(bench, call, (1, 1), (1, 1, 1))
    assert "must be a tuple" in refused(bench, call, [1, 1, 1], (1, 1, 1))
    assert "must be an int" in refused(bench, call, (1, 1, 1.0), (1, 1, 1))
    encoder.endEncoding()


def test_a_fill_value_is_a_signed_char(bench: Workbench) -> None:
    """PyObjC's metadata has uint8_t as a char given as a number: 128 and up do not convert."""
    commands, buffer = bench.commands(), bench.buffer(16)
    encoder = bench.blit(commands)
    assert "outside -128..127" in refused(bench, encoder.fillBuffer_range_value_, buffer, (0, 16), 200)
    encoder.fillBuffer_range_value_(buffer, (0, 16), 200 - 256)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert set(bytes(buffer.contents().as_buffer(16))) == {200}


def test_an_object_has_the_class_that_is_asked_for(bench: Workbench) -> None:
    encoder = bench.compute(bench.commands())
    assert "must be Buffer or NoneType" in refused(bench, encoder.setBuffer_offset_atIndex_, bench.queue, 0, 0)
    assert "must be Pipeline" in refused(bench, encoder.setComputePipelineState_, None)
    encoder.endEncoding()


def test_nil_is_taken_where_it_is_allowed(bench: Workbench) -> None:
    encoder = bench.compute(bench.commands())
    encoder.setBuffer_offset_atIndex_(None, 0, 0)
    encoder.endEncoding()


def test_a_string_is_a_string(bench: Workbench) -> None:
    assert "must be str" in refused(bench, bench.device.newLibraryWithSource_options_error_, b"", None, None)


def test_a_result_argument_is_none_and_comes_back_in_a_tuple(bench: Workbench) -> None:
    call = bench.device.newLibraryWithSource_options_error_
    assert "must be None" in refused(bench, call, "", None, 0)
    library, error = call("", None, None)
    with bench.metal.autorelease_pool():
        assert (library.functionNames(), error) == ((), None)


def test_memory_is_as_long_as_announced(bench: Workbench) -> None:
    encoder = bench.compute(bench.commands())
    assert "shorter than the 8" in refused(bench, encoder.setBytes_length_atIndex_, b"1234", 8, 0)
    assert "must have bytes" in refused(bench, encoder.setBytes_length_atIndex_, 5, 4, 0)
    encoder.endEncoding()


def test_an_array_of_objects_is_a_list_as_long_as_announced(bench: Workbench) -> None:
    encoder, buffer = bench.compute(bench.commands()), bench.buffer(16)
    call = encoder.useResources_count_usage_
    assert "must be a list" in refused(bench, call, buffer, 1, 1)
    assert "shorter than the 2" in refused(bench, call, [buffer], 2, 1)
    call([buffer, buffer], 2, 1)
    encoder.setBuffers_offsets_withRange_([buffer, buffer], [0, 4], (0, 2))
    assert "shorter" in refused(bench, encoder.setBuffers_offsets_withRange_, [buffer], [0, 4], (0, 2))
    encoder.endEncoding()


def test_a_bool_is_a_bool(bench: Workbench) -> None:
    options = bench.metal.MTLCompileOptions.alloc().init()
    options.setFastMathEnabled_(False)
    assert options.fastMathEnabled() is False
    assert "must be a bool" in refused(bench, options.setFastMathEnabled_, 1)


def test_a_block_takes_the_arguments_that_metal_passes(bench: Workbench) -> None:
    commands = bench.commands()
    assert "must take 1 arguments" in refused(bench, commands.addCompletedHandler_, lambda: None)
    assert "must be callable" in refused(bench, commands.addCompletedHandler_, 5)


def test_a_label_of_a_dispatch_queue_is_bytes(bench: Workbench) -> None:
    assert "must be bytes" in refused(bench, bench.metal.dispatch_queue_create, "label", None)


def test_an_autoreleased_object_needs_a_pool(bench: Workbench) -> None:
    """Rule autorelease."""
    made = bench.queue.commandBuffer()
    assert bench.broken() == ["autorelease"]
    del made


def test_a_pool_of_another_thread_does_not_help(bench: Workbench) -> None:
    with bench.metal.autorelease_pool():
        thread = threading.Thread(target=bench.queue.commandBuffer)
        thread.start()
        thread.join(LIMIT)
    assert bench.broken() == ["autorelease"]


def test_a_pool_keeps_what_was_autoreleased_until_it_is_left(bench: Workbench) -> None:
    queue = bench.device.newCommandQueueWithMaxCommandBufferCount_(1)
    with bench.metal.autorelease_pool():
        queue.commandBuffer()
        assert queue._line.uncompleted == 1
    assert queue._line.uncompleted == 0


def test_what_is_made_by_new_needs_no_pool(bench: Workbench) -> None:
    for made in (bench.device.newSharedEvent(), bench.buffer(16), bench.device.newCommandQueue()):
        assert made is not None
    assert not bench.metal.violations


def test_every_enumerator_is_an_attribute() -> None:
    metal = native()
    assert metal.MTLCommandBufferStatusError == 5
    assert metal.MTLHeapTypePlacement == 1
    assert metal.MTLCommandBufferErrorDomain == "MTLCommandBufferErrorDomain"


def test_an_object_is_released_only_by_who_holds_it() -> None:
    """Rule ownership."""
    bench = Workbench(owns_new=False)
    made: Any = bench.device.newSharedEvent()
    assert "already_retained" not in bench.device.newSharedEvent.__metadata__()["retval"]
    gone = weakref.ref(made)
    made.release()
    with bench.breaks("ownership"):
        made.release()
    del made
    gc.collect()  # an error and its frames may hold each other
    assert gone() is None
    bench.close()


def test_what_is_not_released_is_held_for_ever_where_pyobjc_holds_it_twice(bench: Workbench) -> None:
    """Rule ownership."""
    twice = Workbench(owns_new=False)
    gone = [weakref.ref(each.device.newSharedEvent()) for each in (bench, twice)]
    assert [event() is None for event in gone] == [True, False]
    assert bench.device.newSharedEvent.__metadata__()["retval"]["already_retained"]
    twice.close()
