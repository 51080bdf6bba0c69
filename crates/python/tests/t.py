"""The package as a program meets it, right and wrong: python t.py FOLDER. Ends with the first thing that is not so."""

import errno
import gc
import io
import os
import stat
import struct
import subprocess
import sys
import tarfile
import threading

import extant

FOLDER = sys.argv[1]
START, BYTES = 2 << 20, 32 << 20


def path(name):
    return os.path.join(FOLDER, name)


def disk(name):
    """A disk whose partition 2 has a file system."""
    table = bytearray(512)
    for number, start, size in ((0, 1 << 20, 1 << 20), (1, START, BYTES)):
        struct.pack_into("<4xB3xII", table, 446 + 16 * number, 0x83, start // 512, size // 512)
    table[510:] = b"\x55\xaa"
    with open(path(name), "wb") as file:
        file.write(table)
        file.truncate(START + BYTES)
    return extant.Image(path(name), partition=2).format()


def fails(kind, call, *args, number=None, filename=None, text=None, **more):
    try:
        call(*args, **more)
    except kind as error:
        assert number is None or error.errno == number, (error.errno, number)
        assert filename is None or error.filename == filename, error.filename
        assert text is None or text in str(error), str(error)
        return error
    raise AssertionError(f"{call} did not raise {kind}")


def example():
    image = disk("disk.img")
    with image.mount() as fs:
        fs.mkdir("/etc")
        fs.write_bytes("/etc/passwd", b"root:x:0:0\ndaemon:x:1:1\n")
    # What crates/extant/examples/embed.rs does.
    with extant.Image(path("disk.img"), partition=2).mount() as fs:
        with fs.open("/etc/passwd") as users:
            assert [line.split(":")[0] for line in users] == ["root", "daemon"]
        with fs.open("/etc/motd", "a") as motd:
            print("edited by embed", file=motd)
        fs.makedirs("/opt/app/data")
        found = [(os.path.join(at, name), fs.stat(os.path.join(at, name)).st_size)
                 for at, _, names in fs.walk("/etc") for name in names]
        assert found == [("/etc/motd", 16), ("/etc/passwd", 24)], found
    return image


def files(fs):
    with fs.open("/f", "xb", 0, permissions=0o600) as raw:
        assert isinstance(raw, io.RawIOBase) and raw.write(b"0123456789") == 10 and raw.tell() == 10
        assert raw.pwrite(memoryview(b"ABC"), 4) == 3 and raw.tell() == 10
        assert raw.seek(-3, io.SEEK_CUR) == 7 and raw.truncate(8) == 8
        raw.sync()
        fails(io.UnsupportedOperation, raw.read, 1)
        fails(OSError, raw.seek, -1, number=errno.EINVAL)
        fails(ValueError, raw.seek, 0, 9)
        fails(io.UnsupportedOperation, raw.fileno)
        fails(TypeError, raw.write, "text")
    assert fs.read_bytes("/f") == b"0123ABC7"
    with fs.open("/f", "rb") as file:
        assert isinstance(file, io.BufferedReader) and file.read(3) == b"012"
        buffer = bytearray(10)
        assert file.readinto(buffer) == 5 and bytes(buffer[:5]) == b"3ABC7"
        assert file.read() == b"" and file.seek(-1, 2) == 7 and file.read(5) == b"7"
    with fs.open("/f", "rb+") as file:
        assert file.read(2) == b"01" and file.write(b"xy") == 2 and file.seek(0) == 0 and file.read() == b"01xyABC7"
    with fs.open("/f", "ab+") as file:
        assert file.tell() == 8 and file.write(b"!") == 1 and file.seek(0) == 0 and file.read() == b"01xyABC7!"
    with fs.open("/text", "w", encoding="utf-16", newline="\r\n") as file:
        file.write("Grüße\n")
    with fs.open("/text", encoding="utf-16") as file:
        assert file.read() == "Grüße\n"
    with fs.open("/f", "rb", 0) as raw:
        assert raw.read(1 << 40) == b"01xyABC7!" and raw.read(1) == b"" and raw.pread(2, 4) == b"AB"
    big = os.urandom(3 << 20)
    fs.write_bytes("/big", big)
    assert fs.read_bytes("/big") == big

    assert fails(FileNotFoundError, fs.open, "/none", filename="/none").errno == errno.ENOENT
    fails(FileExistsError, fs.open, "/f", "x", filename="/f")
    fails(IsADirectoryError, fs.open, "/", "w")
    fails(IsADirectoryError, fs.open, "/", filename="/")
    fails(NotADirectoryError, fs.open, "/f/g", filename="/f/g")
    fails(OSError, fs.mkdir, "n" * 256, number=errno.ENAMETOOLONG)
    fails(OSError, fs.mkdir, "a\0b", number=errno.EINVAL)
    fails(FileNotFoundError, fs.mkdir, "")
    for mode in ("", "rw", "q", "r++", "bt", "U"):
        fails(ValueError, fs.open, "/f", mode)
    fails(ValueError, fs.open, "/f", "rb", encoding="utf-8")
    fails(ValueError, fs.open, "/f", "r", 0)
    fails(TypeError, fs.open, 7)

    file = fs.open("/f")
    file.close()
    file.close()
    fails(ValueError, file.read)
    raw = fs.open("/f", "rb", 0)
    raw.close()
    for call in (raw.read, raw.tell, raw.readable, raw.sync, lambda: raw.pread(1, 0), lambda: raw.seek(0)):
        fails(ValueError, call)


def names(fs):
    fs.mkdir("/d", 0o700)
    fails(FileExistsError, fs.mkdir, "/d", filename="/d")
    fs.makedirs("/d/e/f")
    fails(FileExistsError, fs.makedirs, "/d/e/f")
    fs.makedirs("/d/e/f", exist_ok=True)
    fails(OSError, fs.rmdir, "/d", number=errno.ENOTEMPTY, filename="/d")
    fs.write_bytes("/d/a", b"a")
    fs.rename("/d/a", "/d/b")
    fs.link("/d/b", "/d/c")
    assert fs.stat("/d/b").st_nlink == 2
    fs.symlink("../d/b", "/d/s")
    assert fs.readlink("/d/s") == "../d/b" and fs.readlink(b"/d/s") == b"../d/b" and fs.read_bytes("/d/s") == b"a"
    fails(OSError, fs.readlink, "/d/b", number=errno.EINVAL)
    fs.write_bytes(b"/d/\xff", b"no UTF-8")
    assert fs.listdir("/d") == ["b", "c", "e", "s", "\udcff"] and b"\xff" in fs.listdir(b"/d")
    assert fs.read_bytes("/d/\udcff") == b"no UTF-8"

    entries = {entry.name: entry for entry in fs.scandir("/d")}
    assert entries["e"].is_dir() and entries["s"].is_symlink() and entries["s"].is_file()
    assert not entries["s"].is_file(follow_symlinks=False) and os.fspath(entries["b"]) == "/d/b"
    assert entries["b"].inode() == entries["b"].stat().st_ino == fs.stat("/d/c").st_ino

    fs.chown("/d/b", 1000, -1)
    fs.chmod("/d/b", stat.S_IFREG | 0o4711)
    fs.chown("/d/s", -1, 7, follow_symlinks=False)
    fs.utime("/d/b", ns=(1, -1_500_000_000))
    found = fs.stat("/d/b")
    assert (found.st_mode, found.st_uid, found.st_gid) == (0o104711, 1000, 0)
    assert (found.st_atime_ns, found.st_mtime_ns) == (1, -1_500_000_000) and fs.lstat("/d/s").st_gid == 7
    fs.utime("/d/b", (5.5, 6))
    assert fs.stat("/d/b").st_atime == 5.5 and fs.stat("/d/b").st_mtime_ns == 6_000_000_000
    fs.utime("/d/b")
    assert fs.stat("/d/b").st_mtime > 1e9

    fs.setxattr("/d/b", "user.k", b"value")
    assert fs.listxattr("/d/b") == ["user.k"] and fs.getxattr("/d/b", b"user.k") == b"value"
    fs.removexattr("/d/b", "user.k")
    fails(OSError, fs.getxattr, "/d/b", "user.k", number=errno.ENODATA, filename="/d/b")

    up = [at for at, _, _ in fs.walk("/d", topdown=False)]
    assert up == ["/d/e/f", "/d/e", "/d"] and [at for at, _, _ in fs.walk("/d")] == up[::-1]
    errors = []
    assert not list(fs.walk("/none", onerror=errors.append)) and errors[0].errno == errno.ENOENT
    fs.remove("/d/c")
    fails(IsADirectoryError, fs.remove, "/d")
    fs.rmtree("/d/e")
    assert not fs.exists("/d/e") and fs.isdir("/d") and fs.isfile("/d/s") and fs.islink("/d/s")

    os.makedirs(path("in/below"))
    with open(path("in/below/file"), "w") as file:
        file.write("text\n")
    fs.copy_in(path("in"), "/copy")
    assert fs.read_bytes("/copy/below/file") == b"text\n"
    fs.copy_out("/copy", path("out"))
    with open(path("out/below/file")) as file:
        assert file.read() == "text\n"
    fails(FileExistsError, fs.copy_out, "/copy", path("out"))
    archive = io.BytesIO()
    fs.export(archive, "/copy")
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        assert tar.getnames() == [".", "./below", "./below/file"]
        assert tar.extractfile("./below/file").read() == b"text\n"
    fails(FileNotFoundError, fs.export, archive, "/none")
    fails(TypeError, fs.export, io.StringIO(), "/copy")
    for number in range(700):
        fs.write_bytes(f"/copy/{number:03}", b"")
    assert len(fs.listdir("/copy")) == 701
    space = fs.space()
    assert space.available <= space.free < space.total and not fs.read_only


def threads(fs):
    """Several threads write while one counts: the interpreter's lock is not held."""
    failed = []

    def work(number):
        try:
            for step in range(20):
                fs.write_bytes(f"/t{number}", bytes([number]) * (100_000 + step))
                assert fs.read_bytes(f"/t{number}") == bytes([number]) * (100_000 + step)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed, failed


def ends(image):
    fs = image.mount()
    file, raw = fs.open("/late", "w"), fs.open("/f", "rb", 0)
    file.write("kept")
    again = extant.Image(path("disk.img"), partition=2)
    fails(OSError, again.mount, number=errno.EBUSY)
    fs.unmount()
    fs.unmount()
    assert fs.closed and file.closed and raw.closed
    for call in (lambda: fs.stat("/"), lambda: fs.open("/f"), fs.sync, raw.readall, lambda: file.write("x")):
        fails(ValueError, call)
    fails(ValueError, fs.__enter__)
    with again.mount() as fs:
        assert fs.read_bytes("/late") == b"kept"
    # Without unmount: the last reference does it.
    fs = again.mount()
    fs.write_bytes("/dropped", b"text")
    del fs
    gc.collect()
    with extant.Image(path("disk.img"), partition=2, read_only=True).mount() as fs:
        assert fs.read_only and fs.read_bytes("/dropped") == b"text"
        fails(OSError, fs.mkdir, "/x", number=errno.EROFS, filename="/x")
    report = again.check()
    assert report.complete and not report.damaged, report

    fails(FileNotFoundError, extant.Image(path("none.img")).mount, text="none.img")
    fails(ValueError, extant.Image, "a", partition=1, offset=512)
    fails(TypeError, extant.Image, 5)
    fails((OverflowError, TypeError), extant.Image, "a", partition=-1)
    with open(path("text.img"), "w") as file:
        file.write("no image" * 10000)
    fails(OSError, extant.Image(path("text.img")).mount, number=errno.EINVAL)


def others():
    said = []
    with extant.Image.memory(16 << 20, owner=(5, 6), messages=said.append).mount() as fs:
        fs.write_bytes("/f", b"text")
        assert fs.stat("/f").st_uid == 5 and fs.stat("/f").st_gid == 6
    with extant.Image.build(path("in"), path("built.img"), 16 << 20, time=1_700_000_000).mount() as fs:
        assert fs.read_bytes("/below/file") == b"text\n"
    fails(FileExistsError, extant.Image.build, path("in"), path("built.img"), 16 << 20)
    # Damage is in the report, or nothing can be checked.
    with open(path("built.img"), "r+b") as file:
        file.seek(1024)
        file.write(b"\xff" * 65536)
    try:
        assert extant.Image(path("built.img")).check().damaged
    except OSError as error:
        assert error.filename == path("built.img")


def fsspec_too():
    try:
        import fsspec
    except ImportError:
        print("skipped: fsspec is not installed")
        return
    where = {"image": path("disk.img"), "partition": 2}
    with fsspec.open("extant:///etc/passwd", **where) as file:
        assert file.readline() == b"root:x:0:0\n"
    with fsspec.open("extant://etc/passwd", "rt", **where) as file:
        assert file.read().startswith("root:")
    gc.collect()
    fs = fsspec.filesystem("extant", read_only=False, **where)
    assert fs.exists("/etc/motd") and not fs.exists("/etc/none") and fs.isdir("/etc")
    assert fs.ls("/etc", detail=False) == ["/etc/motd", "/etc/passwd"]
    assert fs.find("/etc") == ["/etc/motd", "/etc/passwd"] and fs.glob("/etc/pass*") == ["/etc/passwd"]
    assert fs.info("/etc")["type"] == "directory" and fs.size("/etc/motd") == 16
    fs.makedirs("/new/a")
    fs.pipe("/new/a/f", b"piped")
    assert fs.cat("/new/a/f") == b"piped" and fs.cat_file("/new/a/f", 1, 3) == b"ip"
    fs.cp("/new", "/newer", recursive=True)
    fs.mv("/newer/a/f", "/newer/g")
    fs.get("/newer/g", path("got"))
    fs.put(path("got"), "/put")
    assert fs.cat("/put") == b"piped" and fs.modified("/put").year > 2000
    fs.rm("/new", recursive=True)
    assert not fs.exists("/new")
    fails(FileNotFoundError, fs.open, "/none")
    fails(ValueError, fsspec.filesystem, "extant")
    fs.unmount()
    fails(ValueError, fs.ls, "/")


def main():
    image = example()
    with image.mount() as fs:
        files(fs)
        names(fs)
        threads(fs)
    ends(image)
    others()
    fsspec_too()
    with open(path("disk.img"), "rb") as whole, open(path("partition.img"), "wb") as part:
        whole.seek(START)
        part.write(whole.read(BYTES))
    try:
        subprocess.run(["e2fsck", "-fn", path("partition.img")], check=True, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        print("skipped: no e2fsck")
    print("ok")


main()
