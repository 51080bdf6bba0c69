"""A mounted file system, with the calls of :mod:`os`."""

from __future__ import annotations

import io
import os
import stat as bits
import weakref
from typing import IO, Any, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import _extant
from .file import RawFile, letters

AnyPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class Space(NamedTuple):
    """The space of a file system: bytes, then files."""

    total: int
    free: int
    available: int
    """Free for users without privilege."""
    files: int
    files_free: int


class DirEntry:
    """A name in a directory, as ``os.DirEntry``."""

    __slots__ = ("name", "path", "_fs", "_inode", "_kind")

    def __init__(self, fs: "FileSystem", name: Any, path: Any, inode: int, kind: int) -> None:
        self.name = name
        self.path = path
        self._fs = fs
        self._inode = inode
        self._kind = kind

    def inode(self) -> int:
        return self._inode

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._fs.stat(self.path, follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        return bits.S_ISLNK(self._kind)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return bits.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return bits.S_ISREG(self._mode(follow_symlinks))

    def _mode(self, follow: bool) -> int:
        if self._kind and not (follow and self.is_symlink()):
            return self._kind
        try:
            return self.stat(follow_symlinks=follow).st_mode
        except FileNotFoundError:
            return 0

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class ScanDir:
    """The names of a directory, one after the other; closes as ``os.scandir`` does."""

    def __init__(self, fs: "FileSystem", path: AnyPath) -> None:
        self._fs = fs
        self._path = os.fspath(path)
        self._names: Optional[_extant.Names] = fs._live().names(os.fsencode(path))
        self._batch: List[Tuple[bytes, int, int]] = []

    def __iter__(self) -> Iterator[DirEntry]:
        return self

    def __next__(self) -> DirEntry:
        if not self._batch:
            if self._names is None:
                raise StopIteration
            self._batch = self._names.next_batch()[::-1]
            if not self._batch:
                self._names = None
                raise StopIteration
        name, inode, kind = self._batch.pop()
        shown = name if isinstance(self._path, bytes) else os.fsdecode(name)
        return DirEntry(self._fs, shown, _join(self._path, shown), inode, kind)

    def close(self) -> None:
        self._names, self._batch = None, []

    def __enter__(self) -> "ScanDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileSystem:
    """A mounted file system. Paths start at the root of the image; permissions are not checked.

    As a context manager, it unmounts at the end. Open files are closed by then, and use after it is a ValueError.
    """

    def __init__(self, native: "_extant.Fs") -> None:
        self._native: Optional[_extant.Fs] = native
        self._open: "weakref.WeakSet[Any]" = weakref.WeakSet()

    def _live(self) -> "_extant.Fs":
        if self._native is None:
            raise ValueError("the image has been unmounted")
        return self._native

    def __enter__(self) -> "FileSystem":
        self._live()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()

    @property
    def closed(self) -> bool:
        return self._native is None

    def unmount(self) -> None:
        """Closes the open files, makes everything durable and ends the mount. Once is enough; again does nothing.

        :raises OSError: with the first thing that could not be made durable. The mount has ended all the same.
        """
        if self._native is None:
            return
        native, failure = self._native, None
        for file in list(self._open):
            try:
                file.close()
            except OSError as error:
                failure = failure or error
        self._native = None
        native.unmount()
        if failure is not None:
            raise failure

    def sync(self) -> None:
        """Makes durable everything that was written so far; buffers of open files come before."""
        self._live().sync()

    @property
    def image(self) -> str:
        """The name of the image."""
        return self._live().name()

    @property
    def read_only(self) -> bool:
        """Whether nothing can be changed, by request or after an error."""
        return self._live().is_read_only()

    def space(self) -> Space:
        return Space(*self._live().space())

    def open(
        self,
        path: AnyPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
        *,
        permissions: int = 0o644,
    ) -> IO[Any]:
        """As the built-in ``open``. ``permissions`` are those of a file that is created; there is no umask."""
        how = letters(mode)
        binary = "b" in mode
        if binary and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("binary mode takes no encoding, errors or newline")
        if buffering == 0 and not binary:
            raise ValueError("can't have unbuffered text I/O")
        raw = RawFile(self._live().open(os.fsencode(path), how, permissions), os.fspath(path), how, mode)
        if bits.S_ISDIR(raw._live().stat()[0]):
            raw.close()
            raise IsADirectoryError(21, os.strerror(21), os.fspath(path))
        file: Any = raw
        if buffering != 0:
            size = buffering if buffering > 1 else 128 << 10
            if raw.readable() and raw.writable():
                file = io.BufferedRandom(raw, size)
            elif raw.writable():
                file = io.BufferedWriter(raw, size)
            else:
                file = io.BufferedReader(raw, size)
            if "a" in how:
                file.seek(0, io.SEEK_END)
        if not binary:
            file = io.TextIOWrapper(file, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
        self._open.add(file)
        return file

    def read_bytes(self, path: AnyPath) -> bytes:
        with self.open(path, "rb", 0) as file:
            return file.readall()

    def write_bytes(self, path: AnyPath, data: bytes) -> None:
        with self.open(path, "wb") as file:
            file.write(data)

    def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> os.stat_result:
        return _stat(self._live().stat(os.fsencode(path), follow_symlinks))

    def lstat(self, path: AnyPath) -> os.stat_result:
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: AnyPath) -> bool:
        return self._mode(path) != 0

    def isdir(self, path: AnyPath) -> bool:
        return bits.S_ISDIR(self._mode(path))

    def isfile(self, path: AnyPath) -> bool:
        return bits.S_ISREG(self._mode(path))

    def islink(self, path: AnyPath) -> bool:
        return bits.S_ISLNK(self._mode(path, follow=False))

    def _mode(self, path: AnyPath, follow: bool = True) -> int:
        try:
            return self.stat(path, follow_symlinks=follow).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def scandir(self, path: AnyPath = "/") -> ScanDir:
        return ScanDir(self, path)

    def listdir(self, path: AnyPath = "/") -> List[Any]:
        with self.scandir(path) as entries:
            return [entry.name for entry in entries]

    def walk(
        self, top: AnyPath = "/", topdown: bool = True, onerror: Any = None, followlinks: bool = False
    ) -> Iterator[Tuple[Any, List[Any], List[Any]]]:
        """As ``os.walk``. A damaged directory that contains itself is reported once, as EUCLEAN."""
        # Directories on the way, so that depth costs no stack, and their inodes.
        todo: List[Tuple[Any, bool, Any]] = [(os.fspath(top), False, ())]
        while todo:
            path, done, above = todo.pop()
            if done:
                yield path, above[0], above[1]
                continue
            dirs: List[Any] = []
            files: List[Any] = []
            try:
                own = self.stat(path).st_ino
                if own in above:
                    raise OSError(117, "the directory contains itself", path)
                with self.scandir(path) as entries:
                    for entry in entries:
                        (dirs if entry.is_dir() else files).append(entry.name)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                continue
            if topdown:
                yield path, dirs, files
            else:
                todo.append((path, True, (dirs, files)))
            for name in reversed(dirs):
                below = _join(path, name)
                if followlinks or not self.islink(below):
                    todo.append((below, False, above + (own,)))

    def mkdir(self, path: AnyPath, mode: int = 0o755) -> None:
        self._live().mkdir(os.fsencode(path), mode)

    def makedirs(self, path: AnyPath, exist_ok: bool = False) -> None:
        if not exist_ok and self.exists(path):
            raise FileExistsError(17, os.strerror(17), os.fspath(path))
        self._live().makedirs(os.fsencode(path))

    def rename(self, src: AnyPath, dst: AnyPath) -> None:
        """Replaces a file at ``dst``, as ``os.rename`` does on Unix."""
        self._live().rename(os.fsencode(src), os.fsencode(dst))

    replace = rename

    def remove(self, path: AnyPath) -> None:
        self._live().remove(os.fsencode(path))

    unlink = remove

    def rmdir(self, path: AnyPath) -> None:
        self._live().rmdir(os.fsencode(path))

    def rmtree(self, path: AnyPath) -> None:
        """Removes a directory and everything below it, as ``shutil.rmtree``."""
        self._live().rmtree(os.fsencode(path))

    def symlink(self, src: AnyPath, dst: AnyPath) -> None:
        """Makes a symbolic link at ``dst`` that leads to ``src``."""
        self._live().symlink(os.fsencode(src), os.fsencode(dst))

    def readlink(self, path: AnyPath) -> Any:
        target = self._live().readlink(os.fsencode(path))
        return target if isinstance(os.fspath(path), bytes) else os.fsdecode(target)

    def link(self, src: AnyPath, dst: AnyPath) -> None:
        """Gives the file at ``src`` the other name ``dst``."""
        self._live().link(os.fsencode(src), os.fsencode(dst))

    def chmod(self, path: AnyPath, mode: int) -> None:
        self._live().chmod(os.fsencode(path), mode & 0o7777)

    def chown(self, path: AnyPath, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """-1 leaves one as it is."""
        ids = [None if number == -1 else number for number in (uid, gid)]
        self._live().chown(os.fsencode(path), ids[0], ids[1], follow_symlinks)

    def utime(
        self,
        path: AnyPath,
        times: Optional[Tuple[float, float]] = None,
        *,
        ns: Optional[Tuple[int, int]] = None,
    ) -> None:
        """As ``os.utime``: seconds, or nanoseconds as integers; without both, now."""
        if times is not None and ns is not None:
            raise ValueError("times and ns: only one of them")
        if ns is None:
            import time

            ns = tuple(int(t * 1_000_000_000) for t in times) if times else (time.time_ns(),) * 2  # type: ignore
        accessed, modified = (divmod(t, 1_000_000_000) for t in ns)
        self._live().utime(os.fsencode(path), accessed, modified)

    def getxattr(self, path: AnyPath, attribute: Union[str, bytes]) -> bytes:
        return self._live().getxattr(os.fsencode(path), os.fsencode(attribute))

    def setxattr(self, path: AnyPath, attribute: Union[str, bytes], value: bytes) -> None:
        self._live().setxattr(os.fsencode(path), os.fsencode(attribute), bytes(value))

    def removexattr(self, path: AnyPath, attribute: Union[str, bytes]) -> None:
        self._live().removexattr(os.fsencode(path), os.fsencode(attribute))

    def listxattr(self, path: AnyPath) -> List[str]:
        return [os.fsdecode(name) for name in self._live().listxattr(os.fsencode(path))]

    def copy_in(self, host: AnyPath, path: AnyPath) -> None:
        """Copies a file or a whole directory of the host to ``path``, which must not exist."""
        self._live().copy_in(os.fsencode(host), os.fsencode(path))

    def copy_out(self, path: AnyPath, host: AnyPath) -> None:
        """Copies a file or a whole directory to ``host``, which must not exist there."""
        self._live().copy_out(os.fsencode(path), os.fsencode(host))

    def export(self, to: IO[bytes], path: AnyPath = "/") -> None:
        """Writes the tree at ``path`` as a tar archive into a file that takes bytes. An exception that ``to.write`` raises
        ends the export and passes through."""
        self._live().export(os.fsencode(path), to)

    def __repr__(self) -> str:
        return "<extant.FileSystem unmounted>" if self.closed else f"<extant.FileSystem {self.image!r}>"


def _join(path: Any, name: Any) -> Any:
    slash = b"/" if isinstance(path, bytes) else "/"
    return path + name if path.endswith(slash) or not path else path + slash + name


def _stat(of: "_extant._Stat") -> os.stat_result:
    mode, ino, nlink, uid, gid, size, blocks, times, created, device = of
    whole = [seconds for seconds, _ in times]
    ns = [seconds * 1_000_000_000 + nanos for seconds, nanos in times]
    more = {
        "st_atime": ns[0] / 1e9,
        "st_mtime": ns[1] / 1e9,
        "st_ctime": ns[2] / 1e9,
        "st_atime_ns": ns[0],
        "st_mtime_ns": ns[1],
        "st_ctime_ns": ns[2],
        "st_blocks": blocks,
        "st_blksize": 4096,
    }
    if device is not None and hasattr(os, "makedev"):
        more["st_rdev"] = os.makedev(*device)
    if created is not None:
        more["st_birthtime"] = created[0] + created[1] / 1e9
    # Not every system has all of them.
    more = {name: value for name, value in more.items() if hasattr(os.stat_result, name)}
    return os.stat_result((mode, ino, 0, nlink, uid, gid, size, *whole), more)
