"""Which image, and how it is used."""

from __future__ import annotations

import os
import sys
from typing import Callable, List, NamedTuple, Optional, Tuple, Union

from . import _extant
from .filesystem import FileSystem

StrPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class Problem(NamedTuple):
    """A finding of a check."""

    damage: bool
    """False for mere advice."""
    text: str


class Report(NamedTuple):
    """The result of a check."""

    complete: bool
    """False if something fatal was found, and the rest is not known."""
    problems: List[Problem]

    @property
    def damaged(self) -> bool:
        return not self.complete or any(problem.damage for problem in self.problems)


class Image:
    """An image: a file or block device, or memory. Nothing is opened before a method uses it.

    :param path: the file; the words of the command line work, too: ``disk.img@2`` is a partition
    :param partition: the partition; without it, the only one that has a file system
    :param offset: the byte at which the file system begins, instead of a partition
    :param read_only: nothing is written, and a journal is replayed in memory
    :param rescue: read what can be read of a damaged image; implies ``read_only``
    :param owner: user and group of files that are created; root without it
    :param cache_bytes: memory for the caches of a mount
    :param messages: gets the messages of a mount, from any thread; without it they go to standard error
    """

    def __init__(
        self,
        path: StrPath,
        *,
        partition: Optional[int] = None,
        offset: Optional[int] = None,
        read_only: bool = False,
        rescue: bool = False,
        owner: Optional[Tuple[int, int]] = None,
        cache_bytes: Optional[int] = None,
        messages: Optional[Callable[[str], object]] = None,
    ) -> None:
        options = _options(partition, offset, read_only, rescue, owner, cache_bytes, messages)
        self._image = _extant.Image.open(os.fsencode(path), options)

    @classmethod
    def memory(
        cls,
        size: int,
        *,
        owner: Optional[Tuple[int, int]] = None,
        cache_bytes: Optional[int] = None,
        messages: Optional[Callable[[str], object]] = None,
    ) -> "Image":
        """Memory of ``size`` bytes, with a new file system."""
        image = cls.__new__(cls)
        options = _options(None, None, False, False, owner, cache_bytes, messages)
        image._image = _extant.Image.memory(size, options)
        return image.format()

    @classmethod
    def build(cls, tree: StrPath, path: StrPath, size: int, *, time: int = 0) -> "Image":
        """Makes an image file with the files of a directory, a tar archive or an OCI image. ``path`` must not exist.

        :param size: bytes of the image
        :param time: seconds since 1970 for the file system's own structures: the same tree gives the same bytes
        """
        _extant.Image.build(os.fsencode(tree), os.fsencode(path), size, time)
        return cls(path)

    @property
    def name(self) -> str:
        return self._image.name()

    def mount(self) -> FileSystem:
        """Mounts the file system. End it with ``unmount``, or use it as a context manager."""
        return FileSystem(self._image.mount())

    def format(self) -> "Image":
        """Makes an empty ext4 file system over whatever is there."""
        self._image.format()
        return self

    def check(self) -> Report:
        """Checks the file system, and changes nothing."""
        complete, problems = self._image.check()
        return Report(complete, [Problem(*problem) for problem in problems])

    def __repr__(self) -> str:
        return f"<extant.Image {self.name!r}>"


def _options(
    partition: Optional[int],
    offset: Optional[int],
    read_only: bool,
    rescue: bool,
    owner: Optional[Tuple[int, int]],
    cache_bytes: Optional[int],
    messages: Optional[Callable[[str], object]],
) -> "dict[str, object]":
    return {
        "partition": partition,
        "offset": offset,
        "read_only": read_only,
        "rescue": rescue,
        "owner": owner,
        "cache_bytes": cache_bytes,
        "messages": messages or _to_stderr,
    }


def _to_stderr(text: str) -> None:
    print("extant:", text, file=sys.stderr)
