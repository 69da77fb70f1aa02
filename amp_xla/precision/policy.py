"""Mixed-precision policies: the dtypes of parameters, computation and outputs.

A policy is a frozen, hashable value with a short text form for command lines. The same dtypes make
equal policies, whichever framework they come from. Source of the idea and the grammar: jmp,
https://github.com/google-deepmind/jmp.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, Callable, Dict, Tuple, TypeVar

from amp_xla.precision import arrays
from amp_xla.precision.arrays import SPELLINGS, canonical, half_dtype, scalar_type

T = TypeVar("T")

KEYS = ("p", "params", "c", "compute", "o", "output")  # the first letter says which dtype


@dataclasses.dataclass(frozen=True, repr=False)
class Policy:
    """Three dtypes, and methods that cast the floating leaves of a tree to one of them.

    Attributes:
      param_dtype: dtype of variables, the master weights.
      compute_dtype: dtype of the arithmetic.
      output_dtype: dtype of a layer's output.

    Each may be given as a name or as a dtype of NumPy, JAX or TensorFlow, and is stored as a NumPy
    scalar type.

    Raises:
      ValueError: a dtype is not float16, bfloat16, float32 or float64.
    """

    param_dtype: Any
    compute_dtype: Any
    output_dtype: Any

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            dtype = canonical(getattr(self, field.name))
            object.__setattr__(self, field.name, scalar_type(dtype))

    @property
    def names(self) -> Tuple[str, str, str]:
        """The three dtypes' names, e.g. ``("float32", "float16", "float16")``."""
        dtypes = (self.param_dtype, self.compute_dtype, self.output_dtype)
        return tuple(map(canonical, dtypes))  # type: ignore[return-value]

    def cast_to_param(self, tree: T) -> T:
        """Return the tree with floating arrays and tensors in the param dtype.

        Everything else is unchanged, including Python numbers and the indices of sparse gradients.
        """
        return _cast(tree, self.names[0])

    def cast_to_compute(self, tree: T) -> T:
        """Cast like ``cast_to_param``, but to the compute dtype."""
        return _cast(tree, self.names[1])

    def cast_to_output(self, tree: T) -> T:
        """Cast like ``cast_to_param``, but to the output dtype."""
        return _cast(tree, self.names[2])

    def with_output_dtype(self, output_dtype: Any) -> Policy:
        """Return the same policy with another output dtype."""
        return dataclasses.replace(self, output_dtype=output_dtype)

    def __str__(self) -> str:
        """Return e.g. ``p=full,c=f16,o=f16``, which ``get_policy`` reads."""
        return ",".join(f"{k}={SPELLINGS[n][0]}" for k, n in zip("pco", self.names))

    def __repr__(self) -> str:
        return "Policy(" + ", ".join(repr(name) for name in self.names) + ")"

    def __reduce__(self) -> Any:
        return type(self), self.names  # TensorFlow 1.15's bfloat16 type cannot be pickled


def _cast(tree: T, dtype: str) -> T:
    return arrays.map_floats(lambda x: arrays.cast(x, dtype), tree)


def get_policy(name: Any) -> Policy:
    """Return the policy that a string describes; a ``Policy`` is returned unchanged.

    The grammar (spaces between words are ignored):

    - ``c=f16``: keys are ``p``/``params``, ``c``/``compute``, ``o``/``output``. By default params
      are float32, compute equals params, and output equals compute.
    - ``f16``, ``half``, ``full``, ``f``, ...: one dtype for all three.
    - ``mixed_float16``, ``mixed_bfloat16``: Keras' names: float32 params, half-precision compute
      and output.

    Raises:
      ValueError: an unknown key or dtype, or a key given twice.
    """
    if isinstance(name, Policy):
        return name
    text = name.strip()
    if text in ("mixed_float16", "mixed_bfloat16"):
        half = text[len("mixed_") :]
        return Policy("float32", half, half)
    if "=" not in text:
        return Policy(text, text, text)
    dtypes: Dict[str, str] = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in KEYS:
            raise ValueError(
                f"Unknown key '{key}' in '{name}'; allowed: {', '.join(KEYS)}, each as key=dtype"
            )
        if key[0] in dtypes:
            raise ValueError(f"'{key}' sets a dtype a second time in '{name}'")
        dtypes[key[0]] = canonical(value)
    params = dtypes.get("p", "float32")
    compute = dtypes.get("c", params)
    return Policy(params, compute, dtypes.get("o", compute))


def cast_to_full(tree: T) -> T:
    """Return the tree with floating leaves in float32."""
    return _cast(tree, "float32")


def cast_to_half(tree: T) -> T:
    """Return the tree with floating leaves in ``half_dtype()``."""
    return _cast(tree, canonical(half_dtype()))


def full_precision(function: Callable[..., Any], output_dtype: Any = None) -> Callable[..., Any]:
    """Return a function that calls ``function`` with floating arguments cast to float32.

    Args:
      function: any callable on arrays or tensors, e.g. a softmax.
      output_dtype: dtype of its floating results; None leaves them as they are.
    """
    name = None if output_dtype is None else canonical(output_dtype)

    @functools.wraps(function, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*cast_to_full(args), **cast_to_full(kwargs))
        return result if name is None else _cast(result, name)

    return wrapped


@dataclasses.dataclass(frozen=True)
class PolicyRules:
    """Policies chosen by layer name.

    Attributes:
      default: policy of layers that no rule matches.
      rules: pairs (regular expression, policy). The expression is searched in the layer's name,
        ignoring case; the first match decides.

    Example: softmax, norms and logits in float32::

        PolicyRules("mixed_float16", [("softmax|norm|logits", "float32")])
    """

    default: Any
    rules: Any = ()

    def __post_init__(self) -> None:
        rules = tuple((pattern, get_policy(policy)) for pattern, policy in self.rules)
        for pattern, _ in rules:
            re.compile(pattern)
        object.__setattr__(self, "default", get_policy(self.default))
        object.__setattr__(self, "rules", rules)

    def policy_for(self, name: str) -> Policy:
        """Return the policy for a layer or parameter with this name."""
        matching = (p for pattern, p in self.rules if re.search(pattern, name, re.IGNORECASE))
        return next(matching, self.default)

    def cast_to_compute(self, tree: Any) -> Any:
        """Cast each leaf of a tree by the policy for its path, e.g. ``encoder/norm/scale``."""
        return arrays.map_with_path(lambda path, x: self.policy_for(path).cast_to_compute(x), tree)
