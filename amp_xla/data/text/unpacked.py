"""Read files and pipes, compressed or Parquet, as bytes."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import io
import json
import lzma
import operator
import os
import re
import sys
import zipfile
import zlib
from json.encoder import encode_basestring
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type

from amp_xla.errors import DataError
from amp_xla.process import output

COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".zip")
# How packed files begin
_PACKED = re.compile(
    rb"(?P<gz>\x1f\x8b)|(?P<bz2>BZh\d1AY&SY)|(?P<zst>\x28\xb5\x2f\xfd)|(?P<xz>\xfd7zXZ)|"
    rb"(?P<zip>PK\x03\x04)|(?P<Parquet>PAR1)"
)
_OPEN: Dict[str, Callable[[Any], Any]] = {
    "gz": lambda raw: gzip.GzipFile(fileobj=raw),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}
_NO_ZIP = (zipfile.BadZipFile, NotImplementedError)  # errors of ``zipfile``
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4  # bytes of texts
_SMALL, _RATIO = 64 << 20, 100  # most bytes of an unpacked file, or most bytes per packed byte


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a file, a pipe or, for ``-``, standard input, to read its decompressed bytes.

    Compression is recognized by the first bytes, else by the name. Parquet, recognized by its
    first four bytes, is read as JSON lines.
    """
    damage: Tuple[Type[Exception], ...] = (OSError, EOFError, zlib.error, lzma.LZMAError, *_NO_ZIP)
    kind = ""
    try:
        with _raw(path) as raw:
            file: Any = raw
            packed, end = _PACKED.match(raw.peek(10)), os.path.splitext(path.lower())[1]
            kind = str(packed.lastgroup) if packed else end[1:] * (end in COMPRESSED)
            if kind == "zip":
                file = _member(path, raw)
            elif kind == "zst":
                zstandard = extra("zstandard", f"{path}: reading .zst")
                damage += (zstandard.ZstdError,)
                file = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            elif kind == "Parquet":
                parquet = extra("pyarrow.parquet", f"{path}: reading Parquet")
                damage += (extra("pyarrow", path).ArrowException, UnicodeDecodeError)
                file = _Chunks(_json_lines(parquet.ParquetFile(raw)))
            elif kind:
                file = _OPEN[kind](raw)
            yield file if file is raw else io.BufferedReader(_Unpacked(path, file), 1 << 16)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file (looked in {os.path.abspath(os.path.dirname(path))})"
        ) from None
    except damage as error:
        # Only errors of the system have a text, such as "Is a directory"; others mean damage.
        reason = getattr(error, "strerror", None)
        problem = f"cannot be read: {reason}" if reason else f"damaged {kind} file: {error}"
        raise DataError(f"{path}: {' '.join(problem.split())}") from None


class _Unpacked(io.RawIOBase):
    """Unpacked bytes; if over 64 MiB and over 100 times the file's size, raises ``DataError``."""

    def __init__(self, path: str, file: Any) -> None:
        self._path, self._file = path, file
        packed = os.path.getsize(path) if os.path.isfile(path) else MEMORY
        self._most = max(_SMALL, _RATIO * packed)

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        if self._file.tell() > self._most:
            raise DataError(
                f"{called(self._path)}: unpacked, it has more than {self._most:,} bytes, over "
                f"{_RATIO} times its size; if this is right, unpack the file first"
            )
        buffer[: len(data)] = data
        return len(data)


class _Chunks:
    """A file object that reads from an iterator of chunks of bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left, self._size = chunks, b"", 0

    def tell(self) -> int:
        return self._size

    def read(self, size: int) -> bytes:
        self._left = self._left or next(self._chunks, b"")
        data, self._left = self._left[:size], self._left[size:]
        self._size += len(data)
        return data


def _json_lines(file: Any) -> Iterator[bytes]:
    """Yield the rows of a ``pyarrow.parquet.ParquetFile`` as JSON lines."""
    keys = [f"{_ENCODER.encode(name)}: " for name in file.schema_arrow.names]
    for batch in file.iter_batches(batch_size=128):
        cells = zip(*map(_as_json, batch.columns))
        rows = (", ".join(map(operator.add, keys, row)) for row in cells)
        yield "".join(f"{{{row}}}\n" for row in rows).encode("utf-8", "surrogatepass")


def _as_json(column: Any) -> Iterator[str]:
    """Return the JSON of a column's values; columns of text without nulls are encoded faster."""
    if str(column.type) in ("string", "large_string") and not column.null_count:
        return map(encode_basestring, column.to_numpy(zero_copy_only=False))
    try:
        values = column.to_pylist()
    except (KeyError, OverflowError, ValueError):  # times that Python does not have
        values = [None] * len(column)
    return map(_ENCODER.encode, values)


def _plain(value: Any) -> Optional[str]:
    """Return a value of Arrow, such as a date, as text; None for bytes that are not UTF-8."""
    with contextlib.suppress(UnicodeDecodeError):
        return value.decode() if isinstance(value, bytes) else str(value)
    return None


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_plain)


def _member(path: str, raw: Any) -> Any:
    """Open the only file in a ZIP archive."""
    archive = zipfile.ZipFile(raw if raw.seekable() else io.BytesIO(_whole(raw, path, MEMORY)))
    names = _files_in(archive)
    if len(names) == 1:
        try:
            return archive.open(names[0])
        except RuntimeError as error:  # encrypted, or compressed in another way
            raise DataError(f"{called(path)}: {error}") from None
    advice = "unpack it, and name one of them"
    if "[Content_Types].xml" in names:
        advice = "if it is an Excel file, save it as CSV (UTF-8)"
    raise DataError(
        f"{called(path)}: a ZIP archive of {len(names):,} files ({', '.join(names)[:60]}); {advice}"
    )


def _files_in(archive: zipfile.ZipFile) -> List[str]:
    """Return the names of the files in an archive, without hidden ones and those of macOS."""
    names = (n for n in archive.namelist() if not n.endswith("/") and not n.startswith("__MACOSX"))
    return [name for name in names if not os.path.basename(name).startswith(".")]


def _raw(path: str) -> io.BufferedReader:
    if path != "-":
        return open(path, "rb")
    if sys.stdin is None or "stdin" in output.CLOSED:
        raise DataError("standard input is closed; give the name of a file")
    content: Any = io.BytesIO(_whole(sys.stdin.buffer, path, MEMORY))
    return io.BufferedReader(content)  # which can peek


def _whole(file: Any, path: str, most: int) -> bytes:
    """Read all of a file, pipe or device; raise ``DataError`` beyond ``most`` bytes."""
    content = io.BytesIO()
    for part in iter(lambda: file.read(1 << 20), b""):
        content.write(part)
        if content.tell() > most:
            share = ", a quarter of the memory; split the file" if most == MEMORY else ""
            raise DataError(f"{called(path)}: larger than {most:,} bytes{share}")
    return content.getvalue()


def extra(module: str, use: str, packages: Optional[str] = None) -> Any:
    """Import a module of an optional package.

    Args:
      use: feature that needs the module, for the message.
      packages: packages to install; None = the package of the module.

    Raises:
      DataError: the package is missing, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # The package may be installed, without one that it imports.
        package = str(error.name or module).split(".")[0]
        if not module.startswith(package):
            packages = None
        raise DataError(
            f"{use} needs the package {package} ({error}): pip install {packages or package}"
        ) from None


def read_bytes(path: str, most: Optional[int] = None) -> bytes:
    """Return the content of a file, of at most ``most`` bytes when decompressed; see ``opened``.

    ``most``: None = a quarter of the memory. With a number, only a regular file is read, not a
    pipe, because the file may be in an untrusted folder.
    """
    if most is not None and os.path.exists(path) and not os.path.isfile(path):
        raise DataError(f"{path}: not a regular file")
    with opened(path) as file:
        return _whole(file, path, MEMORY if most is None else most)


def plain_name(path: str) -> str:
    """Return a file name without .gz and the like; for a .zip, the name of the only file in it."""
    if path.lower().endswith(".zip") and os.path.isfile(path):
        with contextlib.suppress(OSError, *_NO_ZIP), zipfile.ZipFile(path) as archive:
            names = _files_in(archive)
            return names[0] if len(names) == 1 else os.path.splitext(path)[0]
    return os.path.splitext(path)[0] if path.lower().endswith(COMPRESSED) else path


def called(path: str) -> str:
    """Return the name of a file for messages; ``-`` is standard input."""
    return "standard input" if path == "-" else path
