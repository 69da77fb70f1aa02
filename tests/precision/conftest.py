"""Choose the tests that this runtime can run."""

import importlib.util
import os

EAGER = "AMP_XLA_TEST_EAGER"

# Graph mode is switched on for a whole process, so eager tests run in another, which test_eager.py
# starts.
collect_ignore = [] if EAGER in os.environ else ["eager"]
if importlib.util.find_spec("tensorflow") is None:
    collect_ignore += ["test_eager.py"]
