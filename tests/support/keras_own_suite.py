"""Run tf-keras' own tests of LossScaleOptimizer on amp_xla.precision.compat.keras' class.

    TF_USE_LEGACY_KERAS=1 .venvs/tf2/bin/python -m tests.support.keras_own_suite

It downloads them. The exit code is 1 if the failures are not exactly those that docs/precision.md
explains.
"""

import importlib
import re
import sys
import tempfile
import types
import unittest
import urllib.request
from collections import Counter
from pathlib import Path

from tf_keras.src.mixed_precision import loss_scale_optimizer as original

from amp_xla.precision.compat.keras import LossScaleOptimizer

URL = (
    "https://raw.githubusercontent.com/keras-team/tf-keras/v2.17.0/"
    "tf_keras/mixed_precision/loss_scale_optimizer_test.py"
)
# Failures per test; docs/precision.md has the reasons.
DIFFERENCES = {
    "testConvertToLegacyOptimizer": 1,
    "testDynamicLossScaleWithSlots": 4,
    "testErrorWhenV2LsoWrapsV3Optimizer": 1,
    "testErrorWhenV3LsoWrapsV2Optimizer": 1,
    "testGetConfigDynamic": 1,
    "testGetConfigFixed": 1,
    "testScalingWarning": 2,
    "testSerializationWithBuiltInOptimizer": 3,
    "test_from_config_with_invalid_multiplier": 1,
}


def adapted(source):
    """Return the tests' source with the wheel's module names, the class taken from this file."""
    source = source.replace(
        "from tf_keras.mixed_precision import loss_scale_optimizer\n",
        f"from {__spec__.name} import replaced as loss_scale_optimizer\n",
    )
    return re.sub(r"^from tf_keras", "from tf_keras.src", source, flags=re.MULTILINE)


replaced = types.ModuleType("loss_scale_optimizer")
vars(replaced).update(vars(original))
for name in ("BaseLossScaleOptimizer", "LossScaleOptimizer", "LossScaleOptimizerV3"):
    setattr(replaced, name, LossScaleOptimizer)


def main():
    """Run the tests and compare the failures with the explained ones."""
    with urllib.request.urlopen(URL, timeout=60) as answer:
        source = answer.read().decode()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "keras_own_tests.py").write_text(adapted(source), encoding="utf-8")
        sys.path.insert(0, folder)
        tests = importlib.import_module("keras_own_tests")
        suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
        result = unittest.TextTestRunner(verbosity=0).run(suite)
    names = [test.id().split(" ")[0] for test, _ in result.failures + result.errors]
    failed = Counter(name.rpartition(".")[2].partition("_test_")[0] for name in names)
    print(f"{result.testsRun} run, {len(names)} failed, {len(result.skipped)} skipped", *failed)
    return 0 if failed == DIFFERENCES else 1


if __name__ == "__main__":
    sys.exit(main())
