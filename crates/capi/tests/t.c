/* Every function of extant.h, used and misused: t IMAGE DIRECTORY, with a file system in partition 2 of the image.
 * Prints each check that fails, and ends with 1 then. */
#include <errno.h>
#include <extant.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
static extant_error error;

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            printf("t.c:%d: %s (last error: %s)\n", __LINE__, #condition, error.text);      \
            failures++;                                                                     \
        }                                                                                   \
    } while (0)

/* The call fails with this error number, and its text has this part. */
#define FAILS(call, expected, part)                                                         \
    do {                                                                                    \
        memset(&error, 0, sizeof error);                                                    \
        long long got = (call);                                                             \
        if (got != -(expected) || error.number != (expected) || !strstr(error.text, part)) {\
            printf("t.c:%d: %s: %lld, %d, %s\n", __LINE__, #call, got, error.number, error.text); \
            failures++;                                                                     \
        }                                                                                   \
    } while (0)

static void put(extant_fs *fs, const char *path, const char *text)
{
    extant_file *file;
    CHECK(extant_open(fs, path, EXTANT_WRITE | EXTANT_CREATE | EXTANT_TRUNCATE, 0644, &file, &error) == 0);
    CHECK(extant_write(file, text, strlen(text), &error) == (int64_t)strlen(text));
    CHECK(extant_close(file, &error) == 0);
}

static int is(extant_fs *fs, const char *path, const char *text)
{
    char buffer[256];
    extant_file *file;
    int64_t n;
    if (extant_open(fs, path, EXTANT_READ, 0, &file, &error) < 0)
        return 0;
    n = extant_read(file, buffer, sizeof buffer, &error);
    return extant_close(file, &error) == 0 && n == (int64_t)strlen(text) && !memcmp(buffer, text, n);
}

static void files(extant_fs *fs)
{
    char buffer[16] = "";
    extant_file *file;
    extant_metadata stat;

    CHECK(extant_open(fs, "/f", EXTANT_READ | EXTANT_WRITE | EXTANT_NEW, 0600, &file, &error) == 0);
    CHECK(extant_write(file, "0123456789", 10, &error) == 10);
    CHECK(extant_pwrite(file, "ABC", 3, 4, &error) == 3);
    CHECK(extant_seek(file, -7, SEEK_END, &error) == 3);
    CHECK(extant_read(file, buffer, sizeof buffer, &error) == 7 && !strcmp(buffer, "3ABC789"));
    CHECK(extant_read(file, buffer, sizeof buffer, &error) == 0);
    CHECK(extant_pread(file, buffer, 2, 5, &error) == 2 && !memcmp(buffer, "BC", 2));
    CHECK(extant_fsync(file, &error) == 0 && extant_fdatasync(file, &error) == 0);
    CHECK(extant_ftruncate(file, 5, &error) == 0);
    CHECK(extant_fstat(file, &stat, &error) == 0 && stat.bytes == 5 && stat.mode == 0100600);
    FAILS(extant_seek(file, -1, SEEK_SET, &error), EINVAL, "range");
    FAILS(extant_seek(file, 0, 7, &error), EINVAL, "whence");
    FAILS(extant_read(file, NULL, 4, &error), EFAULT, "NULL");
    CHECK(extant_read(file, NULL, 0, &error) == 0);
    FAILS(extant_read(file, buffer, (size_t)-1, &error), EINVAL, "memory");
    FAILS(extant_fstat(file, NULL, &error), EFAULT, "NULL");
    CHECK(extant_close(file, &error) == 0);

    /* A handle that was closed, one of another kind, NULL, and an address. */
    FAILS(extant_close(file, &error), EBADF, "closed");
    FAILS(extant_read(file, buffer, 1, &error), EBADF, "closed");
    FAILS(extant_read((extant_file *)fs, buffer, 1, &error), EBADF, "file");
    FAILS(extant_read(NULL, buffer, 1, &error), EFAULT, "NULL");
    FAILS(extant_read((extant_file *)buffer, buffer, 1, &error), EBADF, "file");

    put(fs, "/log", "one\n");
    CHECK(extant_open(fs, "/log", EXTANT_APPEND, 0, &file, &error) == 0);
    CHECK(extant_write(file, "two\n", 4, &error) == 4 && extant_seek(file, 0, SEEK_CUR, &error) == 8);
    FAILS(extant_read(file, buffer, 1, &error), EBADF, "/log: not opened to read");
    CHECK(extant_close(file, &error) == 0 && is(fs, "/log", "one\ntwo\n"));

    FAILS(extant_open(fs, "/f", EXTANT_WRITE | EXTANT_NEW, 0, &file, &error), EEXIST, "/f: ");
    FAILS(extant_open(fs, "/none/f", EXTANT_READ, 0, &file, &error), ENOENT, "/none/f: ");
    FAILS(extant_open(fs, "/f/g", EXTANT_READ, 0, &file, &error), ENOTDIR, "/f/g: ");
    FAILS(extant_open(fs, "", EXTANT_READ, 0, &file, &error), ENOENT, "");
    FAILS(extant_open(fs, NULL, EXTANT_READ, 0, &file, &error), EFAULT, "NULL");
    FAILS(extant_open(fs, "/f", EXTANT_READ, 0, NULL, &error), EFAULT, "NULL");
    FAILS(extant_open(fs, "/f", 0, 0, &file, &error), EINVAL, "");
    FAILS(extant_open(fs, "/f", 1u << 20, 0, &file, &error), EINVAL, "0x100000");
    CHECK(extant_open(fs, "/none", EXTANT_READ, 0, &file, NULL) == -ENOENT);
}

static void names(extant_fs *fs)
{
    char buffer[512], longest[258];
    extant_metadata stat;

    CHECK(extant_mkdir(fs, "/d", 0700, &error) == 0);
    FAILS(extant_mkdir(fs, "/d", 0700, &error), EEXIST, "/d: ");
    CHECK(extant_stat(fs, "/d", &stat, &error) == 0 && stat.mode == 0040700 && stat.nlink == 2);
    CHECK(extant_mkdirs(fs, "/d/e/f", &error) == 0 && extant_mkdirs(fs, "d/e/f/", &error) == 0);
    FAILS(extant_rmdir(fs, "/d", &error), ENOTEMPTY, "/d: ");
    FAILS(extant_unlink(fs, "/d", &error), EISDIR, "/d: ");
    put(fs, "/d/a", "a");
    put(fs, "/d/\xff\xfe", "no UTF-8");
    CHECK(is(fs, "/d/\xff\xfe", "no UTF-8") && is(fs, "/d/e/../a", "a"));
    CHECK(extant_rename(fs, "/d/a", "/d/b", &error) == 0 && is(fs, "/d/b", "a"));
    FAILS(extant_rename(fs, "/d", "/d/e/d", &error), EINVAL, "/d: ");
    CHECK(extant_link(fs, "/d/b", "/d/c", &error) == 0);
    CHECK(extant_stat(fs, "/d/b", &stat, &error) == 0 && stat.nlink == 2);
    CHECK(extant_symlink(fs, "../d/b", "/d/s", &error) == 0 && is(fs, "/d/s", "a"));
    CHECK(extant_lstat(fs, "/d/s", &stat, &error) == 0 && (stat.mode & 0170000) == 0120000);
    CHECK(extant_readlink(fs, "/d/s", NULL, 0, &error) == 6);
    CHECK(extant_readlink(fs, "/d/s", buffer, sizeof buffer, &error) == 6 && !memcmp(buffer, "../d/b", 6));
    FAILS(extant_readlink(fs, "/d/s", buffer, 3, &error), ERANGE, "6 bytes");
    FAILS(extant_readlink(fs, "/d/b", buffer, 9, &error), EINVAL, "/d/b: ");
    memset(longest, 'n', 256);
    longest[256] = 0;
    FAILS(extant_mkdir(fs, longest, 0755, &error), ENAMETOOLONG, "nnn");
    CHECK(strlen(error.text) < sizeof error.text);

    CHECK(extant_chown(fs, "/d/b", 1000, EXTANT_UNCHANGED, &error) == 0);
    CHECK(extant_chmod(fs, "/d/b", 04711, &error) == 0);
    CHECK(extant_lchown(fs, "/d/s", EXTANT_UNCHANGED, 7, &error) == 0);
    extant_time when = { -2, 500000000 }, wrong = { 0, 1000000000 };
    CHECK(extant_utimes(fs, "/d/b", NULL, &when, &error) == 0);
    FAILS(extant_utimes(fs, "/d/b", &wrong, NULL, &error), EINVAL, "no time");
    CHECK(extant_stat(fs, "/d/b", &stat, &error) == 0 && stat.mode == 0104711 && stat.uid == 1000 && stat.gid == 0);
    CHECK(stat.modified.seconds == -2 && stat.modified.nanoseconds == 500000000 && stat.created.seconds > 0);
    CHECK(extant_lstat(fs, "/d/s", &stat, &error) == 0 && stat.uid == 0 && stat.gid == 7);

    CHECK(extant_setxattr(fs, "/d/b", "user.k", "value", 5, &error) == 0);
    CHECK(extant_getxattr(fs, "/d/b", "user.k", NULL, 0, &error) == 5);
    CHECK(extant_getxattr(fs, "/d/b", "user.k", buffer, 5, &error) == 5 && !memcmp(buffer, "value", 5));
    CHECK(extant_listxattr(fs, "/d/b", buffer, sizeof buffer, &error) == 7 && !strcmp(buffer, "user.k"));
    FAILS(extant_listxattr(fs, "/d/b", buffer, 2, &error), ERANGE, "7 bytes");
    CHECK(extant_removexattr(fs, "/d/b", "user.k", &error) == 0);
    FAILS(extant_getxattr(fs, "/d/b", "user.k", buffer, 5, &error), ENODATA, "/d/b: ");
    FAILS(extant_setxattr(fs, "/d/b", "odd.k", "", 0, &error), EOPNOTSUPP, "");

    CHECK(extant_unlink(fs, "/d/c", &error) == 0 && extant_remove_all(fs, "/d/e", &error) == 0);
    FAILS(extant_unlink(fs, "/d/c", &error), ENOENT, "/d/c: ");
    CHECK(extant_mkdir(fs, "/gone", 0755, &error) == 0 && extant_rmdir(fs, "/gone", &error) == 0);
}

static void listing(extant_fs *fs)
{
    extant_dir *dir;
    extant_dirent entry;
    extant_space space;

    CHECK(extant_opendir(fs, "/d", &dir, &error) == 0);
    CHECK(extant_readdir(dir, &entry, &error) == 1 && !strcmp(entry.name, "b") && entry.kind == 0100000);
    CHECK(extant_readdir(dir, &entry, &error) == 1 && !strcmp(entry.name, "s") && entry.kind == 0120000);
    CHECK(extant_readdir(dir, &entry, &error) == 1 && entry.length == 2 && !strcmp(entry.name, "\xff\xfe"));
    CHECK(extant_readdir(dir, &entry, &error) == 0 && extant_readdir(dir, &entry, &error) == 0);
    FAILS(extant_readdir(dir, NULL, &error), EFAULT, "NULL");
    CHECK(extant_closedir(dir, &error) == 0);
    FAILS(extant_closedir(dir, &error), EBADF, "directory");
    FAILS(extant_readdir(dir, &entry, &error), EBADF, "directory");
    FAILS(extant_opendir(fs, "/f", &dir, &error), ENOTDIR, "/f: ");
    CHECK(extant_statfs(fs, &space, &error) == 0 && space.free < space.total && space.files_free < space.files);
    CHECK(extant_is_read_only(fs, &error) == 0);
}

/* An archive that is counted, and ends with an error once it is longer than its room. */
struct archive {
    char name[8];
    size_t bytes, room;
};

static int archive_output(void *user, const void *data, size_t size)
{
    struct archive *archive = user;
    if (archive->bytes == 0)
        memcpy(archive->name, data, size < sizeof archive->name ? size : sizeof archive->name);
    archive->bytes += size;
    return archive->bytes > archive->room ? -ENOSPC : 0;
}

static void copies(extant_fs *fs, const char *folder)
{
    struct archive archive = { .room = SIZE_MAX };
    char in[4096], out[4096], line[16] = "";
    FILE *file;

    snprintf(in, sizeof in, "%s/in", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    CHECK(extant_copy_in(fs, in, "/copy", &error) == 0 && is(fs, "/copy/below/file", "text\n"));
    FAILS(extant_copy_in(fs, in, "/copy", &error), EEXIST, "/copy: ");
    CHECK(extant_copy_out(fs, "/copy", out, &error) == 0);
    FAILS(extant_copy_out(fs, "/copy", out, &error), EEXIST, out);
    snprintf(out, sizeof out, "%s/out/below/file", folder);
    CHECK((file = fopen(out, "r")) && fgets(line, sizeof line, file) && !strcmp(line, "text\n"));
    if (file)
        fclose(file);
    CHECK(extant_export(fs, "/copy", archive_output, &archive, &error) == 0);
    CHECK(archive.bytes % 512 == 0 && archive.bytes >= 2048 && !strncmp(archive.name, "./", 2));
    archive.bytes = 0;
    archive.room = 1;
    FAILS(extant_export(fs, "/copy", archive_output, &archive, &error), ENOSPC, "/copy: ");
    FAILS(extant_export(fs, "/none", archive_output, &archive, &error), ENOENT, "/none: ");
    FAILS(extant_export(fs, "/copy", NULL, NULL, &error), EFAULT, "output");
    snprintf(in, sizeof in, "%s/none", folder);
    FAILS(extant_copy_in(fs, in, "/x", &error), ENOENT, in);
}

/* A device in memory, which counts, and can fail. */
struct disk {
    char *bytes;
    int reads, writes, flushes, released, fails;
};

static int disk_read(void *user, void *buffer, size_t size, uint64_t offset)
{
    struct disk *disk = user;
    disk->reads++;
    memcpy(buffer, disk->bytes + offset, size);
    return disk->fails ? -EIO : 0;
}

static int disk_write(void *user, const void *data, size_t size, uint64_t offset)
{
    struct disk *disk = user;
    disk->writes++;
    memcpy(disk->bytes + offset, data, size);
    return disk->fails ? -EIO : 0;
}

static int disk_flush(void *user)
{
    struct disk *disk = user;
    disk->flushes++;
    return disk->fails ? -EIO : 0;
}

static void disk_release(void *user)
{
    ((struct disk *)user)->released++;
}

static void said(void *user, const char *text)
{
    (void)text;
    ++*(int *)user;
}

static void device(void)
{
    enum { BYTES = 16 << 20 };
    struct disk disk = { calloc(1, BYTES), 0, 0, 0, 0, 0 };
    int messages = 0, problems = 0;
    extant_options options = { .size = sizeof options, .uid = 5, .message = said, .message_user = &messages };
    extant_device of = { sizeof of, BYTES, &disk, disk_read, disk_write, disk_flush, disk_release };
    extant_image *image, *again;
    extant_metadata stat;
    extant_fs *fs;
    extant_file *file;

    CHECK(extant_image_device(&of, &options, &image, &error) == 0 && extant_image_format(image, &error) == 0);
    CHECK(extant_mount(image, &fs, &error) == 0 && extant_image_free(image, &error) == 0 && disk.released == 0);
    put(fs, "/f", "in a device of C");
    CHECK(is(fs, "/f", "in a device of C") && extant_stat(fs, "/f", &stat, &error) == 0 && stat.uid == 5);
    CHECK(extant_sync(fs, &error) == 0 && disk.reads && disk.writes && disk.flushes);
    CHECK(extant_unmount(fs, &error) == 0 && disk.released == 1);

    /* It cannot be written without a function for that. */
    of.write = NULL;
    CHECK(extant_image_device(&of, NULL, &image, &error) == 0 && extant_mount(image, &fs, &error) == 0);
    CHECK(extant_is_read_only(fs, &error) == 1 && is(fs, "/f", "in a device of C"));
    FAILS(extant_mkdir(fs, "/d", 0755, &error), EROFS, "/d: ");
    CHECK(extant_unmount(fs, &error) == 0);
    CHECK(extant_image_check(image, NULL, NULL, &error) == 0 && extant_image_free(image, &error) == 0);
    CHECK(disk.released == 2);

    /* It fails. */
    of.write = disk_write;
    CHECK(extant_image_device(&of, &options, &image, &error) == 0 && extant_mount(image, &fs, &error) == 0);
    CHECK(extant_open(fs, "/f", EXTANT_WRITE, 0, &file, &error) == 0 && extant_write(file, "new", 3, &error) == 3);
    disk.fails = 1;
    FAILS(extant_fsync(file, &error), EIO, "/f: ");
    FAILS(extant_unmount(fs, &error), EIO, "device");
    FAILS(extant_fsync(file, &error), EBADF, "unmounted");
    CHECK(messages > 0 && disk.released == 2);
    CHECK(extant_close(file, &error) == 0 && extant_image_free(image, &error) == 0 && disk.released == 3);

    /* It is wrong. */
    of.read = NULL;
    FAILS(extant_image_device(&of, NULL, &image, &error), EFAULT, "read");
    FAILS(extant_image_device(NULL, NULL, &image, &error), EFAULT, "NULL");
    of.read = disk_read;
    of.bytes = UINT64_MAX;
    FAILS(extant_image_device(&of, NULL, &image, &error), EINVAL, "large");
    of.bytes = BYTES;
    of.size = 0;
    FAILS(extant_image_device(&of, NULL, &image, &error), EINVAL, "sizeof");
    of.size = sizeof of;
    options.flags = 1u << 30;
    FAILS(extant_image_device(&of, &options, &image, &error), EINVAL, "flags");
    CHECK(disk.released == 3);

    /* Damage is found and read around. */
    disk.fails = 0;
    memset(disk.bytes + 1024 + 88, 0xff, 2);
    options.flags = EXTANT_READ_ONLY;
    CHECK(extant_image_device(&of, &options, &image, &error) == 0);
    extant_image_check(image, (extant_problem_fn)0, &problems, &error);
    CHECK(extant_image_memory(1 << 20, NULL, &again, &error) == 0);
    FAILS(extant_mount(again, &fs, &error), EINVAL, "memory: ");
    CHECK(extant_image_free(again, &error) == 0 && extant_image_free(image, &error) == 0);
    free(disk.bytes);
}

int main(int argc, char **argv)
{
    extant_options options = { .size = sizeof options, .partition = 2 };
    extant_image *image, *other;
    extant_fs *fs, *second;
    extant_file *file;
    char path[4096];

    if (argc != 3)
        return 2;
    CHECK(strchr(extant_version(), '.'));
    FAILS(extant_image_open(NULL, NULL, &image, &error), EFAULT, "NULL");
    FAILS(extant_image_open("", NULL, &image, &error), ENOENT, "empty");
    FAILS(extant_image_open("x", NULL, NULL, &error), EFAULT, "NULL");
    CHECK(extant_image_open("no/such.img", NULL, &image, &error) == 0);
    FAILS(extant_mount(image, &fs, &error), ENOENT, "no/such.img");
    CHECK(extant_image_free(image, &error) == 0);
    FAILS(extant_image_free(image, &error), EBADF, "image");
    FAILS(extant_mount(image, &fs, &error), EBADF, "image");

    CHECK(extant_image_open(argv[1], &options, &image, &error) == 0);
    FAILS(extant_mount(image, NULL, &error), EFAULT, "NULL");
    if (extant_mount(image, &fs, &error) < 0) {
        printf("%s\n", error.text);
        return 1;
    }
    CHECK(extant_image_open(argv[1], &options, &other, &error) == 0);
    FAILS(extant_mount(other, &second, &error), EBUSY, argv[1]);
    CHECK(extant_image_free(other, &error) == 0);

    files(fs);
    names(fs);
    listing(fs);
    copies(fs, argv[2]);

    CHECK(extant_open(fs, "/f", EXTANT_READ, 0, &file, &error) == 0);
    CHECK(extant_unmount(fs, &error) == 0);
    FAILS(extant_unmount(fs, &error), EBADF, "file system");
    FAILS(extant_mkdir(fs, "/late", 0755, &error), EBADF, "file system");
    FAILS(extant_read(file, path, 1, &error), EBADF, "unmounted");
    CHECK(extant_close(file, &error) == 0);
    CHECK(extant_image_check(image, NULL, NULL, &error) == 0);
    CHECK(extant_image_free(image, &error) == 0);

    snprintf(path, sizeof path, "%s/built.img", argv[2]);
    snprintf(error.text, sizeof error.text, "%s/in", argv[2]);
    CHECK(extant_image_build(error.text, path, 16 << 20, 1700000000, NULL) == 0);
    CHECK(extant_image_open(path, NULL, &image, &error) == 0 && extant_mount(image, &fs, &error) == 0);
    CHECK(is(fs, "/below/file", "text\n"));
    CHECK(extant_unmount(fs, &error) == 0 && extant_image_free(image, &error) == 0);

    device();
    printf("%d failures\n", failures);
    return failures != 0;
}
