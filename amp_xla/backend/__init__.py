"""TensorFlow, Keras and bert4keras on TensorFlow 1.15 and 2.x, behind one interface.

``from amp_xla.backend import tf, keras, K`` gives ``tf.compat.v1``, legacy Keras 2 and its backend
in graph mode on both.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from amp_xla.backend import nvidia, repairs
from amp_xla.errors import SetupOrderError, UnsupportedError
from amp_xla.process.checkout import environment

# From this version on bert4keras masks with -inf and `where`. Earlier versions subtract an infinity
# that can be set, and their CRF takes scores below -1e6 for padding.
SAFE_MASKS = (0, 11, 5)
CRF_LAYERS = ("ConditionalRandomField", "MaximumEntropyMarkovModel")
REWRITES = ("auto_mixed_precision", "auto_mixed_precision_onednn_bfloat16")  # oneDNN's for CPUs
_INITIALIZED = "_keras_initialized"  # Keras' own mark of a variable
MIN_CAPABILITY = (7, 0)  # the rewrite pass skips older GPUs (no tensor cores)
_devices_listed = False


@functools.lru_cache(maxsize=None)
def tensorflow() -> Any:
    """Import and return ``tensorflow`` without its start-up messages; does not set graph mode."""
    os.environ.setdefault("TF_KERAS", "1")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # Hides start-up messages, some of which TensorFlow 2.17 logs as errors although they are none.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Otherwise the tokenizers library prints a warning at each fork after it has used threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import tensorflow as module
        except ImportError as error:
            reason = str(error).rpartition("ImportError: ")[2].partition("\n")[0]
            raise UnsupportedError(
                f"TensorFlow cannot be imported ({reason}); install it ({environment()}), or run "
                f"inside NVIDIA's TensorFlow container"
            ) from error
        module.get_logger().setLevel("ERROR")
    # 1.15 rewrites comprehensions in the code of a tf.function wrongly.
    _call_as_written("amp_xla")
    return module


def installed() -> str:
    """Guess ``tf1`` or ``tf2`` without importing TensorFlow, from Python's version and tf_keras."""
    # TensorFlow 1.15 needs Python 3.8 or older.
    return "tf2" if sys.version_info >= (3, 9) or importlib.util.find_spec("tf_keras") else "tf1"


def kind() -> str:
    """Return ``tf1`` (1.15) or ``tf2``."""
    version = tensorflow().__version__
    if version.startswith(("1.15.", "2.")):
        return f"tf{version[0]}"
    raise UnsupportedError(f"TensorFlow {version} is not supported; supported: 1.15, 2.x")


def is_fork() -> bool:
    """Return True on NVIDIA's TensorFlow 1.15, whose optimizers have loss scaling built in."""
    return kind() == "tf1" and hasattr(tensorflow().compat.v1.train.Optimizer, "doing_loss_scaling")


@functools.lru_cache(maxsize=None)
def _prepare() -> Dict[str, Any]:
    """Set graph mode, resource variables and legacy Keras; return ``tf``, ``keras`` and ``K``.

    Legacy Keras is set under every name by which bert4keras imports Keras.
    """
    raw = tensorflow()
    v1 = raw.compat.v1
    if raw.executing_eagerly() and kind() == "tf2":
        try:
            v1.disable_eager_execution()
        except ValueError as error:
            raise SetupOrderError(
                "TensorFlow has already been used eagerly in this process, but amp_xla "
                "trains in graph mode; import amp_xla.setup before the first TensorFlow operation"
            ) from error
    v1.enable_resource_variables()
    # tf.cond becomes Switch and Merge on both versions; passes of 1.15 support nothing else.
    v1.disable_control_flow_v2()
    v1.logging.set_verbosity(v1.logging.ERROR)
    _call_as_written("bert4keras", "recipes")
    if kind() == "tf1":
        return {"tf": v1, "keras": raw.keras, "K": raw.keras.backend}
    return {"tf": v1, **_legacy_keras(raw)}


def _call_as_written(*libraries: str) -> None:
    """Keep AutoGraph from rewriting the source code of ``libraries``.

    Their layers have no ``if`` on a tensor, and rewriting would take a third of the start-up time.
    """
    from tensorflow.python.autograph.core import config

    config.CONVERSION_RULES += tuple(config.DoNotConvert(name) for name in libraries)


def _legacy_keras(raw: Any) -> Dict[str, Any]:
    """Use tf-keras as ``keras``, repaired for graph mode; return ``tf``, ``keras`` and ``K``."""
    try:
        import tf_keras
        from tf_keras.src import backend as source
    except ImportError as error:
        raise UnsupportedError(
            f"legacy Keras is missing ({error}); install the tf-keras of TensorFlow's own "
            f"version, here tf-keras~={raw.__version__.rsplit('.', 1)[0]}.0"
        ) from error
    loaded = sys.modules.get("keras")
    if loaded is not None and getattr(loaded, "__version__", "2").startswith("3"):
        raise SetupOrderError(
            f"Keras {loaded.__version__} is already imported; put `import amp_xla.setup` above "
            f"the import that loads keras"
        )
    # Users cannot fix these: bert4keras' regular expressions, and each predict in graph mode.
    warnings.filterwarnings("ignore", category=SyntaxWarning, module=".*bert4keras")
    warnings.filterwarnings("ignore", "`Model.state_updates`", UserWarning)
    import tf_keras.optimizers.legacy as legacy

    for optimizers in (tf_keras.optimizers, raw.keras.optimizers):
        for name in dir(legacy):
            # bert4keras subclasses keras.optimizers.Optimizer the way Keras 2.3 had it.
            if isinstance(getattr(legacy, name), type):
                setattr(optimizers, name, getattr(legacy, name))
    repairs.repair(tf_keras, raw.keras, source)
    for backend in (tf_keras.backend, raw.keras.backend):
        backend.get_session = source.get_session
        backend.set_session = source.set_session
    sys.modules["keras"] = tf_keras
    for name in ("backend", "layers", "models", "optimizers", "initializers", "activations"):
        sys.modules[f"keras.{name}"] = getattr(tf_keras, name)
    return {"tf": raw.compat.v1, "keras": tf_keras, "K": tf_keras.backend}


def __getattr__(name: str) -> Any:
    if name in ("tf", "keras", "K"):
        return _prepare()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def graph_model() -> Any:
    """Return Keras' model class for graph mode, which has ``fit``."""
    if kind() == "tf1":
        return _prepare()["keras"].Model
    _prepare()
    return importlib.import_module("tf_keras.src.engine.training_v1").Model


def bert4keras(name: str = "backend") -> Any:
    """Import and return a bert4keras module, e.g. ``bert4keras("models")``."""
    _prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(f"bert4keras.{name}")
        except ModuleNotFoundError as error:
            if error.name not in ("bert4keras", "bert4keras.backend"):  # or a folder of this name
                raise
            raise UnsupportedError("bert4keras is not installed; pip install bert4keras") from None


def bert4keras_version() -> Tuple[int, ...]:
    """Return bert4keras' version, e.g. (0, 11, 3)."""
    _prepare()
    return tuple(int(part) for part in importlib.import_module("bert4keras").__version__.split("."))


def session() -> Any:
    """Return Keras' session for the default graph, with the options of ``amp_xla.setup``."""
    return _prepare()["K"].get_session()


def uninitialized(variables: Sequence[Any]) -> List[Any]:
    """Return the ``variables`` that have no value in Keras' session."""
    current, tf = session(), _prepare()["tf"]
    with current.graph.as_default():
        flags = current.run([tf.is_variable_initialized(v) for v in variables])
    # On 1.15 the flag is False if an XLA cluster wrote the variable: each is initialized only once.
    return [v for v, flag in zip(variables, flags) if not (flag or hasattr(v, _INITIALIZED))]


def initialize(variables: Sequence[Any]) -> None:
    """Initialize the ``variables`` that have no value; loaded and trained weights stay."""
    current, missing = session(), uninitialized(variables)
    with current.graph.as_default():
        current.run(_prepare()["tf"].variables_initializer(missing))
    for variable in missing:
        setattr(variable, _INITIALIZED, True)


def set_graph_rewrite(half_dtype: Optional[str]) -> None:
    """Turn the auto-mixed-precision pass on or off for sessions created from now on.

    ``half_dtype`` None turns it off. Keras' sessions get the pass from the options of TensorFlow's
    context. Other sessions get it from a wrapper, unless their own options turn it on or off. For
    float16, a global flag of TensorFlow is set, too, so that Keras refuses a half-precision policy.
    """
    from tensorflow.python.training.experimental import mixed_precision_global_state as state

    half = half_dtype == "float16"
    options = {REWRITES[0]: half}
    if kind() == "tf1":
        state.mixed_precision_graph_rewrite_is_enabled = half
    else:
        state.set_mixed_precision_graph_rewrite_enabled(half)
        options[REWRITES[1]] = half_dtype == "bfloat16"
    tensorflow().config.optimizer.set_experimental_options(options)
    _rewrite_in_plain_sessions()


@functools.lru_cache(maxsize=None)
def _rewrite_in_plain_sessions() -> None:
    """Add the pass to the options of users' sessions, unless these options turn it on or off."""
    from tensorflow.python.client import session as client

    raw, original = tensorflow(), client.BaseSession.__init__

    @functools.wraps(original)
    def init(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        options = raw.config.optimizer.get_experimental_options()
        passes = [name for name in REWRITES if options.get(name)]
        if passes:
            both = raw.compat.v1.ConfigProto()
            for name in passes:
                setattr(both.graph_options.rewrite_options, name, 1)  # RewriterConfig.ON
            both.MergeFrom(config or raw.compat.v1.ConfigProto())
            both.graph_options.place_pruned_graph = False  # InteractiveSession's: runs no pass
            config = both
        original(self, target, graph, config)

    client.BaseSession.__init__ = init


def clear_session() -> None:
    """Close Keras' session and replace the default graph by an empty one."""
    session().close()
    _prepare()["K"].clear_session()
    # 1.15 has put a placeholder into the graph; seeds depend on the number of operations.
    _prepare()["tf"].reset_default_graph()


def used() -> bool:
    """Return True if a session, or on 2.x a list of GPUs, has made TensorFlow read its flags."""
    from tensorflow.python.client import session as client

    sessions = client._python_session_create_counter.get_cell().value()
    return sessions > 0 or (kind() == "tf2" and _devices_listed)


def use_gpu(number: int) -> None:
    """Make only GPU ``number``, the local rank of this process, visible to this process.

    Raises:
      UnsupportedError: this host has fewer GPUs than ranks.
    """
    config = tensorflow().config.experimental
    seen = config.get_visible_devices("GPU")
    if number >= len(seen):
        raise UnsupportedError(
            f"rank {number} of this host has no GPU: TensorFlow sees {len(seen)} here; start as "
            f"many ranks on each host as the host has GPUs (NP=auto)"
        )
    config.set_visible_devices([seen[number]], "GPU")
    config.set_memory_growth(seen[number], True)


def gpus() -> List[str]:
    """Return the names of the GPUs that TensorFlow sees, without initializing these GPUs."""
    global _devices_listed
    _devices_listed = True
    return [gpu.name for gpu in tensorflow().config.experimental.get_visible_devices("GPU")]


def compute_capability() -> Optional[Tuple[int, int]]:
    """Return the lowest compute capability of the GPUs that CUDA shows; None if unknown.

    On 1.15, if CUDA_VISIBLE_DEVICES has UUIDs, return the lowest of all GPUs of this machine.
    """
    config = tensorflow().config.experimental
    if kind() == "tf2":
        details = map(config.get_device_details, config.get_visible_devices("GPU"))
        known = [each.get("compute_capability") for each in details]
    else:
        every = nvidia.look().gpus
        known = [gpu.capability for gpu in nvidia.visible(every, os.environ) or every]
    return min(((c[0], c[1]) for c in known if c), default=None)


def half_dtype(has_gpu: Optional[bool] = None) -> Tuple[Optional[str], str]:
    """Return the half precision that this machine can train in, and the reason.

    Args:
      has_gpu: whether there is a GPU; None = look at TensorFlow's devices.

    Returns:
      (``float16`` | ``bfloat16`` | None, the reason as one clause).
    """
    if has_gpu is None and gpus():
        capability = compute_capability()
        if capability is None:
            return "float16", "GPU"
        name = f"GPU of compute capability {capability[0]}.{capability[1]}"
        if capability >= MIN_CAPABILITY:
            return "float16", name
        return None, f"{name}; mixed precision needs 7.0 or newer"
    if has_gpu:
        return "float16", "GPU"
    if kind() == "tf1":
        return None, "no GPU, and TensorFlow 1.15 has no half precision on CPU"
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false"):
        return None, "no GPU, and oneDNN is off (TF_ENABLE_ONEDNN_OPTS=0)"
    # oneDNN has bfloat16 kernels for AVX-512 and AVX-NE-CONVERT.
    if not {"avx512f", "avx_ne_convert"} & set(cpu().get("flags", "").split()):
        return None, "no GPU, and this CPU has no AVX-512 for oneDNN's bfloat16"
    return "bfloat16", "no GPU; bfloat16 on CPU through oneDNN"


def cpu() -> Dict[str, str]:
    """Return the fields of /proc/cpuinfo, such as ``model name``; empty without such a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
