"""ext2, ext3 and ext4 images in user space.

``Image("disk.img", partition=2).mount()`` is a :class:`FileSystem` with the calls of :mod:`os`; its ``open`` returns the
files of :mod:`io`. A failure is an :class:`OSError` with the number of Linux's ext4 and the path. Use after the end is a
:class:`ValueError`.
"""

from ._extant import __version__
from .file import RawFile
from .filesystem import DirEntry, FileSystem, Space
from .image import Image, Problem, Report

__all__ = ["DirEntry", "FileSystem", "Image", "Problem", "RawFile", "Report", "Space", "__version__"]
