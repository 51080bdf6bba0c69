#!/usr/bin/env python3
"""again.py DEVICE DIR OPTIONS: another mount of what Extant serves of DEVICE, on DIR, as a second mount(2) of a device makes one
of the same superblock. Exit status: 0; 32 with mount(8)'s message; 2 if the device is not mounted."""
import ctypes
import os
import sys

AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # system calls, the same on all machines
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH, MS_PRIVATE = 1, 4, 1 << 18
# linux/mount.h: MOUNT_ATTR_*
FLAGS = {"ro": 0x1, "nosuid": 0x2, "nodev": 0x4, "noexec": 0x8, "noatime": 0x10, "strictatime": 0x20, "nodiratime": 0x80}
ATIME = 0x70
libc = ctypes.CDLL(None, use_errno=True)


class MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def call(*arguments):
    done = libc.syscall(*arguments)
    return done if done >= 0 else -ctypes.get_errno()


def unescaped(path):
    return path.encode().decode("unicode_escape")


def mount_id(path):
    """The mount that a path leads to, which may lie over another."""
    try:
        fd = os.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        with open(f"/proc/self/fdinfo/{fd}") as info:
            return next(line.split()[1] for line in info if line.startswith("mnt_id:"))
    finally:
        os.close(fd)


def fail(what):
    print(f"mount: {what}", file=sys.stderr)
    sys.exit(32)


def main():
    device, place, options = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2]), sys.argv[3].split(",")
    if not os.path.exists(place):
        fail(f"{sys.argv[2]}: mount point does not exist.")
    tree, known, read_only, why = -1, False, False, "no visible mount"
    with open("/proc/self/mountinfo") as table:
        mounts = [line.split() for line in table]
    for fields in mounts:
        of = fields[fields.index("-") + 1:]
        if "extant" not in of[0] or unescaped(of[1]) != device or fields[3] != "/":
            continue
        known, read_only, where = True, "ro" in of[2].split(","), unescaped(fields[4])
        hidden = mount_id(where) != fields[0]
        if where == place and not hidden:
            fail(f"{place}: {device} already mounted on {place}.")
        if not hidden:
            # One that may not be bound cannot be cloned either: the last that can.
            got = call(OPEN_TREE, AT_FDCWD, where.encode(), OPEN_TREE_CLONE | os.O_CLOEXEC)
            tree, why = (got, why) if got >= 0 else (tree, os.strerror(-got))
    if not known:
        sys.exit(2)
    if ("ro" in options) != read_only:
        fail(f"{place}: {device} already mounted or mount point busy.")
    if tree < 0:
        fail(f"{place}: {device}: {why}")
    wanted = MountAttr(clear=ATIME | sum(FLAGS[name] for name in ("ro", "nosuid", "nodev", "noexec", "nodiratime")))
    wanted.set = sum(flag for name, flag in FLAGS.items() if name in options)
    wanted.propagation = MS_PRIVATE
    for done in (
        call(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(wanted), ctypes.sizeof(wanted)),
        call(MOVE_MOUNT, tree, b"", AT_FDCWD, place.encode(), MOVE_MOUNT_F_EMPTY_PATH),
    ):
        if done < 0:
            fail(f"{place}: {os.strerror(-done)}")


main()
