"""What the tests of C kernels need: a compiler, and a cache of their own."""

import pytest

from tidegate.drivers.cpu import c_compiler
from tidegate.errors import DriverUnavailableError


@pytest.fixture(scope="module")
def compiler_present():
    try:
        c_compiler.find_compiler()
    except DriverUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def cache_directory(tmp_path_factory, monkeypatch):
    """A cache of this test's own, in a directory nobody else may write to."""
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(directory))
    monkeypatch.delenv("CC", raising=False)
    return directory / "cpu"
