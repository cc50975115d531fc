"""`tidegate demo`, and the streaming in it."""

from __future__ import annotations

import numpy as np
import pytest

import tidegate as tg
from tidegate.cli import _streaming, main


@pytest.mark.slow
def test_the_demo_streams_checks_and_compares(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["demo", "--device", "cpu", "--size", "1", "--depth", "3"]) == 0
    text = capsys.readouterr().out
    assert "3 chunks in flight" in text
    assert "one chunk at a time" in text
    assert "1,048,576" in text
    assert "every element is right; the overlap won" in text


@pytest.mark.slow
def test_a_wrong_element_is_named_and_fails_the_demo(capsys, monkeypatch):
    def stream(device, function, source, target, *others):
        target[:] = _streaming.mix(source)
        target[1234] ^= 1

    monkeypatch.setattr(_streaming, "stream", stream)
    assert main(["demo", "--device", "cpu", "--size", "1"]) == 1
    assert "element 1234 is" in capsys.readouterr().err


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_streaming_gives_what_numpy_gives_also_in_a_short_last_chunk(depth):
    source = _streaming.make_source(4 * 50_001)
    target = np.zeros_like(source)
    seen = []
    with tg.open_device("cpu") as device:
        function = _streaming.load_mix(device)
        _streaming.stream(device, function, source, target, depth, 32768, seen.append)
        for _ in range(3000):  # who ends the last work tells first and releases then
            if not device.statistics().allocated_bytes:
                break
            device.queue().host_call(int).wait(30)
        assert device.statistics().allocated_bytes == 0
    assert np.array_equal(target, _streaming.mix(source))
    assert sum(seen) == source.nbytes


def test_the_python_form_of_the_kernel_does_the_same():
    source = _streaming.make_source(4096)
    target = np.zeros(8192, np.uint8)
    _streaming._mix_in_python((1, 1, 1), [source.view(np.uint8), target], (np.uint32(1000),))
    assert np.array_equal(target.view(np.uint32)[:1000], _streaming.mix(source[:1000]))
    assert not target.view(np.uint32)[1000:].any()


def test_numpys_answer_in_parts_is_its_answer():
    source = _streaming.make_source(4 * 600_001)
    seen = []
    assert np.array_equal(_streaming.mix_all(source, seen.append), _streaming.mix(source))
    assert sum(seen) == source.nbytes


def test_the_first_wrong_element_is_found_wherever_it_is():
    expected = _streaming.make_source(4 * 1_600_000)
    target = expected.copy()
    assert _streaming.find_wrong(expected, target) is None
    for index in (1_599_999, 1_048_576, 0):
        target[index] += 1
        assert _streaming.find_wrong(expected, target) == index


@pytest.mark.parametrize("depth", [2, 4, 64, 1024])
@pytest.mark.parametrize("driver", ["cpu", "cuda"])
@pytest.mark.parametrize("mib", [1, 3, 256, 4096])
def test_chunks_are_whole_pages_and_of_a_sane_size(driver, mib, depth):
    chunk = _streaming.chunk_bytes(mib * 2**20, depth, driver)
    assert 64 * 1024 <= chunk <= _streaming.USUAL_CHUNK
    assert chunk % 4096 == 0
