"""For experts: the parts that everyday programs need not know."""

from ._core.registry import register_driver
from ._core.staging import StagingBuffer, StagingRange
from ._core.subscription import when_over

__all__ = ["StagingBuffer", "StagingRange", "register_driver", "when_over"]
