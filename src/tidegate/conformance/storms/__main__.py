"""`python -m tidegate.conformance.storms`: a storm of one kind in this process."""

import sys

from .run import main

sys.exit(main())
