"""How much the property tests search.

By default every run tries the same examples, so that a failure is somebody's change and not bad luck. For a search,
`TIDEGATE_EXAMPLES=2000 pytest tests/properties` tries that many new ones.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_EXAMPLES = os.environ.get("TIDEGATE_EXAMPLES")
_NO_SHRINK = "TIDEGATE_NO_SHRINK" in os.environ

settings.register_profile(
    "tidegate",
    derandomize=_EXAMPLES is None,
    max_examples=int(_EXAMPLES or 40),
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    # Shrinking runs real threads thousands of times: only where somebody asked for a search.
    phases=[Phase.explicit, Phase.generate]
    if _EXAMPLES is None or os.environ.get("TIDEGATE_NO_SHRINK")
    else list(Phase),
)
settings.load_profile("tidegate")
