"""For experts: the parts that everyday programs need not know."""

from ._core.compiled import when_over
from ._core.foreign_streams import cuda_event, cuda_stream_wait, from_cuda_event, from_cuda_stream, with_parameters
from ._core.host_calls import set_host_threads
from ._core.native_events import event_barrier, export_event, import_event
from ._core.registry import register_driver
from ._core.staging import StagingBuffer, StagingRange

__all__ = [
    "StagingBuffer",
    "StagingRange",
    "cuda_event",
    "cuda_stream_wait",
    "event_barrier",
    "export_event",
    "from_cuda_event",
    "from_cuda_stream",
    "import_event",
    "register_driver",
    "set_host_threads",
    "when_over",
    "with_parameters",
]
