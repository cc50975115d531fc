"""The package says that it is typed, so that type checkers believe its annotations."""

from __future__ import annotations

from importlib import resources


def test_the_marker_is_in_the_package() -> None:
    assert resources.files("tidegate").joinpath("py.typed").is_file()
