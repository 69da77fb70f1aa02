"""A stand-in for 1.15's tensorflow.python._tf_stack in Python: see standin_base.sh."""

import linecache
import sys
from typing import Any, List, Optional


class StackFrame(tuple):
    """(file, line number, function, source line)."""

    filename = property(lambda self: self[0])
    lineno = property(lambda self: self[1])
    name = property(lambda self: self[2])
    line = property(lambda self: self[3])
    globals = property(lambda self: {})
    func_start_lineno = property(lambda self: -1)


def extract_stack(
    limit: Optional[int], mapper: Any = None, filtered: Any = None
) -> List[StackFrame]:
    """The frames above the caller's, outermost first."""
    frames: List[StackFrame] = []
    frame = sys._getframe(2)
    while frame is not None and (limit in (None, -1) or len(frames) < (limit or 0)):
        code = frame.f_code
        if not (filtered and code.co_filename in filtered):
            line = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
            frames.append(StackFrame((code.co_filename, frame.f_lineno, code.co_name, line)))
        frame = frame.f_back  # type: ignore[assignment]
    return frames[::-1]
