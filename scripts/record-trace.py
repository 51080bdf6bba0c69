#!/usr/bin/env python3
"""Records which pages of files a program reads: record-trace.py FILE COMMAND [ARGUMENT...]

The trace goes to FILE; `extant lab model reclaim-traces --set trace=FILE` replays it. It has the pages in the order of their use, and no
names, numbers of inodes, times or contents. The command and all its descendants are recorded, with what they read by read(2) and
what they map: a mapped page counts when it is mapped, or faulted in, not whenever it is used. Writes are not in it.

Needs root, zstd(1), and a kernel with tracefs (CONFIG_FTRACE, CONFIG_FTRACE_SYSCALLS). The kernel reports the pages that a read asked for, so the
results of the system calls say where the file ended. Of the events of mm_filemap, get_pages, map_pages and fault are in Linux since
6.12. An older kernel has only add_to_page_cache: the misses of its own cache. Then the page cache is emptied first, so that at least each
first use is in the trace, and the trace says little about uses after that; the last line of output names it.

It makes an instance of its own under tracefs and removes it at the end, also on Ctrl-C; other users of tracefs notice nothing.
"""
import os
import re
import signal
import subprocess
import sys
import threading

HEAD = b"extant page trace 1\n"
EVENTS = ["mm_filemap_get_pages", "mm_filemap_map_pages", "mm_filemap_fault"]
OLDER = ["mm_filemap_add_to_page_cache"]
READS = ["read", "pread64", "readv", "preadv", "preadv2", "sendfile64", "splice", "copy_file_range"]
PAGE = 4096
BUFFER_KIB = 32768
LINE = re.compile(rb"-(\d+)\s.* (mm_filemap_\w+): dev[= ](\d+:\d+) ino[= ]([0-9a-f]+) (?:pfn=\S+ )?ofs=(\d+)(?:-(\d+))?(?: order=(\d+))?")
RESULT = re.compile(rb"-(\d+)\s.*: sys_\w+ -> (0x[0-9a-f]+)")


class Trace:
    """Runs of pages, packed."""

    def __init__(self):
        self.out = bytearray(HEAD)
        self.files, self.ends = {}, {}
        self.file, self.runs, self.pages, self.distinct = 0, 0, 0, set()
        # Each thread's read under way, as (inode, first page, last page asked for), and the end in bytes of its last one in each file.
        self.reads, self.ended = {}, {}

    def leb128(self, value):
        while value >= 0x80:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)

    def zigzag(self, value):
        self.leb128(value << 1 if value >= 0 else (-value << 1) - 1)

    def mapped(self, inode, first, last):
        self.run(inode, first, last)

    def asked(self, thread, inode, first, last):
        """A read asks for pages. A long one is reported again and again, each time from where it is."""
        if thread in self.reads:
            inode_before, began, ended = self.reads[thread]
            if inode_before == inode and last == ended and first > began:
                return
            # A read by the kernel itself, which no system call ends: of a program's header, for one.
            self.returned(thread, (ended + 1 - began) * PAGE)
        self.reads[thread] = (inode, first, last)

    def returned(self, thread, size):
        """The thread's read has returned so many bytes, or an error."""
        inode, first, last = self.reads.pop(thread, (None, 0, 0))
        if inode is None or size <= 0:
            return
        before = self.ended.get((thread, inode), 0)
        # Where in its first page it began is only known if it went on where the last one ended.
        begin = before if before // PAGE == first else first * PAGE
        self.ended[thread, inode] = begin + size
        last = min(last, (begin + size - 1) // PAGE)
        # As in Linux, a read that begins inside the page where the last one ended does not use that page again.
        if begin == before and begin % PAGE:
            first += 1
        if first <= last:
            self.run(inode, first, last)

    def run(self, inode, first, last):
        file = self.files.setdefault(inode, len(self.files))
        self.zigzag(file - self.file)
        self.zigzag(first - self.ends.get(file, 0))
        self.leb128(last - first)
        self.file, self.ends[file] = file, last + 1
        self.runs += 1
        self.pages += last - first + 1
        self.distinct.update((file, page) for page in range(first, last + 1))


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def fail(why):
    sys.exit(f"record-trace: {why}")


def mounted():
    """The directory of tracefs, and whether this mounted it."""
    for place in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        if os.path.isdir(place + "/instances"):
            return place, False
    place = "/sys/kernel/tracing"
    if not os.path.isdir(place) or subprocess.call(["mount", "-t", "tracefs", "nodev", place], stderr=subprocess.DEVNULL):
        fail("no tracefs: the kernel needs CONFIG_FTRACE")
    return place, True


def start(command):
    """A child that waits for a byte before it becomes the command."""
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(wait, 1)
        os.close(wait)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"record-trace: {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)
    os.close(wait)
    return child, go


def record(instance, events, command):
    trace, lost = Trace(), []
    write(f"{instance}/tracing_on", "0")
    write(f"{instance}/buffer_size_kb", str(BUFFER_KIB))
    write(f"{instance}/trace_clock", "mono")
    write(f"{instance}/options/event-fork", "1")
    child, go = start(command)
    write(f"{instance}/set_event_pid", str(child))
    for event in events:
        write(f"{instance}/events/{event}/enable", "1")

    def take(line):
        if b"LOST" in line:
            lost.append(line)
        if found := RESULT.search(line):
            size = int(found[2], 16)
            return trace.returned(found[1], size if size < 1 << 63 else -1)
        if found := LINE.search(line):
            thread, event, device, inode, first, last, order = found.groups()
            first = int(first) // PAGE
            last = int(last) // PAGE if last else first + (1 << int(order or 0)) - 1
            if event == b"mm_filemap_get_pages":
                trace.asked(thread, (device, inode), first, last)
            else:
                trace.mapped((device, inode), first, last)

    def follow():
        with open(f"{instance}/trace_pipe", "rb", buffering=1 << 20) as pipe:
            for line in pipe:
                if b"record-trace: end" in line:
                    return
                take(line)

    reader = threading.Thread(target=follow)
    reader.start()
    write(f"{instance}/tracing_on", "1")
    os.write(go, b"x")
    os.close(go)
    try:
        _, status = os.waitpid(child, 0)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    for event in events:
        write(f"{instance}/events/{event}/enable", "0")
    write(f"{instance}/trace_marker", "record-trace: end")
    reader.join()
    if lost:
        fail(f"the kernel lost events ({len(lost)} times): the command reads faster than they can be taken")
    return trace, os.waitstatus_to_exitcode(status)


def main():
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.split("\n", 1)[0])
    target, command = sys.argv[1], sys.argv[2:]
    if os.geteuid() != 0:
        fail("tracefs belongs to root: run this as root")
    place, ours = mounted()
    instance = f"{place}/instances/extant-{os.getpid()}"
    os.mkdir(instance)
    try:
        there = lambda folder, names: [f"{folder}/{n}" for n in names if os.path.isdir(f"{instance}/events/{folder}/{n}")]
        events, results = there("filemap", EVENTS), there("syscalls", ["sys_exit_" + n for n in READS])
        if not events:
            events = there("filemap", OLDER)
            os.sync()
            write("/proc/sys/vm/drop_caches", "1")
        if not events or not results:
            fail("the kernel has no events of mm_filemap and of system calls: it needs CONFIG_FTRACE_SYSCALLS")
        trace, status = record(instance, results + events, command)
    finally:
        os.rmdir(instance)
        if ours:
            subprocess.call(["umount", place])
    if status != 0:
        fail(f"{command[0]}: exit status {status}; no trace is written")
    subprocess.run(["zstd", "-19", "-q", "-f", "-o", target], input=bytes(trace.out), check=True)
    print(f"{target}: {trace.pages} uses of {len(trace.distinct)} pages of {len(trace.files)} files, in {trace.runs} runs; "
          f"{os.path.getsize(target)} bytes; {', '.join(e.split('/')[1] for e in events)}")


if __name__ == "__main__":
    main()
