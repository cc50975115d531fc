"""How much the property tests search.

By default every run tries the same examples, so that a failure is somebody's change and not bad luck. For a search,
`TIDEGATE_EXAMPLES=2000 pytest tests/properties` tries that many new ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

_EXAMPLES = os.environ.get("TIDEGATE_EXAMPLES")

settings.register_profile(
    "tidegate",
    derandomize=_EXAMPLES is None,
    max_examples=int(_EXAMPLES or 20),
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("tidegate")


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads change places as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
