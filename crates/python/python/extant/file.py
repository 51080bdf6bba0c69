"""Open files, as :mod:`io` knows them."""

from __future__ import annotations

import io
import os
from typing import Any, Optional, Union

from . import _extant


def letters(mode: str) -> str:
    """The permissions of ``open``'s mode, as the native half has them.

    :raises ValueError: for a mode that ``open`` does not know
    """
    kinds = [letter for letter in mode if letter in "rwax"]
    rest = mode.translate({ord(letter): None for letter in "rwax"})
    if len(kinds) != 1 or rest.strip("b+t") or len(set(rest)) != len(rest) or ("b" in rest and "t" in rest):
        raise ValueError(f"invalid mode: {mode!r}")
    how = {"r": "r", "w": "wct", "a": "ac", "x": "wx"}[kinds[0]]
    return how + {"r": "w", "w": "r", "a": "r", "x": "r"}[kinds[0]] if "+" in rest else how


class RawFile(io.RawIOBase):
    """An open file without a buffer. Threads that share one use ``pread`` and ``pwrite``."""

    def __init__(self, native: "_extant.RawFile", name: Union[str, bytes], how: str, mode: str) -> None:
        self._native: Optional[_extant.RawFile] = native
        self._how = how
        self._at = 0
        self.name = name
        self.mode = mode

    def _live(self) -> "_extant.RawFile":
        if self._native is None:
            raise ValueError("I/O operation on closed file")
        return self._native

    def close(self) -> None:
        if self._native is not None:
            super().close()
            self._native = None

    def readable(self) -> bool:
        self._live()
        return "r" in self._how

    def writable(self) -> bool:
        self._live()
        return "w" in self._how or "a" in self._how

    def seekable(self) -> bool:
        self._live()
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        with memoryview(buffer) as view, view.cast("B") as to:
            data = self._live().read_at(len(to), self._at)
            to[: len(data)] = data
        self._at += len(data)
        return len(data)

    def read(self, size: Optional[int] = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        data = self._live().read_at(size, self._at)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        parts = []
        # A file may grow meanwhile.
        while part := self.read(max(self._live().size() - self._at, 0)):
            parts.append(part)
        return b"".join(parts)

    def write(self, data: Any) -> int:
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        native = self._live()
        written = native.write_at(bytes(data), self._at)
        self._at = native.size() if "a" in self._how else self._at + written
        return written

    def pread(self, size: int, offset: int) -> bytes:
        """Reads from byte ``offset`` on, without a change of the position."""
        return self._live().read_at(size, offset)

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes at byte ``offset``, without a change of the position."""
        return self._live().write_at(bytes(data), offset)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        native = self._live()
        if whence == io.SEEK_SET:
            at = offset
        elif whence == io.SEEK_CUR:
            at = self._at + offset
        elif whence == io.SEEK_END:
            at = native.size() + offset
        else:
            raise ValueError(f"invalid whence: {whence}")
        if not 0 <= at < 1 << 63:
            raise OSError(22, os.strerror(22), self.name)
        self._at = at
        return at

    def tell(self) -> int:
        self._live()
        return self._at

    def truncate(self, size: Optional[int] = None) -> int:
        size = self._at if size is None else size
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        self._live().set_len(size)
        return size

    def sync(self, *, data_only: bool = False) -> None:
        """Makes the content durable, as ``os.fsync`` does. A buffer around the file is flushed before."""
        self._live().sync(data_only)

    def __repr__(self) -> str:
        return f"<extant.RawFile name={self.name!r} mode={self.mode!r}>"
