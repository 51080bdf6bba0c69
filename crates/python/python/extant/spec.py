"""fsspec: ``fsspec.open("extant:///etc/passwd", image="disk.img", partition=2)``."""

from __future__ import annotations

import datetime
import stat as bits
from typing import Any, Dict, List, Optional

from fsspec.spec import AbstractFileSystem

from .image import Image

_KINDS = {bits.S_IFREG: "file", bits.S_IFDIR: "directory", bits.S_IFLNK: "link"}


class ExtantFileSystem(AbstractFileSystem):
    """The files of an image. The other options are those of :class:`extant.Image`.

    The image is mounted as long as this object or one of its files exists, or until ``unmount``. It is read only unless
    ``read_only=False`` is given.
    """

    protocol = "extant"
    root_marker = "/"
    # A mount has the image locked: an object in fsspec's cache would lock it until the program ends.
    cachable = False

    def __init__(self, image: Any = None, read_only: bool = True, **options: Any) -> None:
        names = ("partition", "offset", "rescue", "owner", "cache_bytes", "messages")
        of_image = {name: options.pop(name) for name in names if name in options}
        super().__init__(**options)
        if image is None:
            raise ValueError('extant: which image? fsspec.open("extant:///PATH", image="disk.img", partition=2)')
        self._fs = Image(image, read_only=read_only, **of_image).mount()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = str(path)
        if path.startswith("extant://"):
            path = path[len("extant://") :]
        return "/" + path.strip("/")

    def unmount(self) -> None:
        self._fs.unmount()

    def info(self, path: Any, **_: Any) -> Dict[str, Any]:
        path = self._strip_protocol(path)
        found = self._fs.lstat(path)
        answer = {
            "name": path,
            "size": found.st_size,
            "type": _KINDS.get(bits.S_IFMT(found.st_mode), "other"),
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "mtime": found.st_mtime,
            "islink": bits.S_ISLNK(found.st_mode),
        }
        if answer["islink"]:
            answer["destination"] = self._fs.readlink(path)
            if self._fs.exists(path):
                target = self._fs.stat(path)
                answer["size"] = target.st_size
                answer["type"] = _KINDS.get(bits.S_IFMT(target.st_mode), "other")
        return answer

    def ls(self, path: Any, detail: bool = True, **_: Any) -> List[Any]:
        path = self._strip_protocol(path)
        if not self._fs.isdir(path):
            found = [path] if self._fs.stat(path) else []
        else:
            found = [entry.path for entry in self._fs.scandir(path)]
        return [self.info(one) for one in found] if detail else found

    def _open(
        self, path: Any, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **_: Any
    ) -> Any:
        return self._fs.open(self._strip_protocol(path), mode)

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self._fs.makedirs(path)
        else:
            self._fs.mkdir(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        self._fs.makedirs(self._strip_protocol(path), exist_ok)

    def rmdir(self, path: Any) -> None:
        self._fs.rmdir(self._strip_protocol(path))

    def _rm(self, path: Any) -> None:
        self._fs.remove(self._strip_protocol(path))

    rm_file = _rm

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        for one in path if isinstance(path, list) else [path]:
            one = self._strip_protocol(one)
            if self._fs.isdir(one) and not self._fs.islink(one):
                if not recursive:
                    raise IsADirectoryError(21, "a directory: recursive=True removes it", one)
                self._fs.rmtree(one)
            else:
                self._fs.remove(one)

    def mv(self, path1: Any, path2: Any, **_: Any) -> None:
        self._fs.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    mv_file = mv

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self._fs.isdir(path1):
            self._fs.makedirs(path2, exist_ok=True)
            return
        with self._fs.open(path1, "rb") as source, self._fs.open(path2, "wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)

    def modified(self, path: Any) -> datetime.datetime:
        when = self._fs.stat(self._strip_protocol(path)).st_mtime
        return datetime.datetime.fromtimestamp(when, tz=datetime.timezone.utc)

    def created(self, path: Any) -> datetime.datetime:
        found = self._fs.stat(self._strip_protocol(path))
        when = getattr(found, "st_birthtime", None) or found.st_ctime
        return datetime.datetime.fromtimestamp(when, tz=datetime.timezone.utc)
