"""Found by interpreters that tests start while the map from lines to tests is made."""

import os

if os.environ.get("MUTATE_TRACE_FOLDER"):
    from mutation.tracing import trace_this_interpreter

    trace_this_interpreter()
