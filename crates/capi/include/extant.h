/*
 * extant.h: ext2, ext3 and ext4 images in user space. Made by `cargo xtask header`; changes belong into crates/capi/src.
 *
 * A function returns 0 or a count, or a negative error number of Linux, whatever the system is. The last argument gets
 * the reason, or is NULL. Paths are bytes, start at the root of the image, and permissions are not checked.
 *
 * A handle (extant_image *, extant_fs *, extant_file *, extant_dir *) is never followed: one that was closed, or that is
 * of another kind, is -EBADF, and NULL is -EFAULT. Every function may be called by many threads at once. One that is
 * closed while another thread uses it lives until that thread's call ends.
 */
#ifndef EXTANT_H
#define EXTANT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types and constants ---- */

/* An image: a file, a device or memory, and how it is to be used. Nothing is opened before it is mounted
 * or checked. */
typedef struct extant_image extant_image;

/* A mounted file system. */
typedef struct extant_fs extant_fs;

/* An open file. */
typedef struct extant_file extant_file;

/* An open directory. */
typedef struct extant_dir extant_dir;

/* Room for the reason of a failure. Every function takes one as its last argument, or NULL, and fills it
 * only if it fails. */
typedef struct extant_error {
    /* A positive error number of Linux, also on other systems: the function has returned its negative. */
    int number;
    /* IMAGE: PATH: REASON, in UTF-8, ended by a zero; a longer text is cut. */
    char text[1020];
} extant_error;

/* A function that gets the messages of a mount: damage that was met, writes that were lost. Several
 * threads may call it at once. It must not call functions of this library. */
typedef void (*extant_message_fn)(void *user, const char *text);

/* A function that gets one problem of a check. `damage` is 0 for mere advice. */
typedef void (*extant_problem_fn)(void *user, int damage, const char *text);

/* A function that gets the next `size` bytes of an archive. Returns 0, or a negative error number, which
 * ends the export. */
typedef int (*extant_output_fn)(void *user, const void *data, size_t size);

/* A function of a device: fills `buffer` with `size` bytes from byte `offset` on. Returns 0, or a negative
 * error number. */
typedef int (*extant_read_fn)(void *user, void *buffer, size_t size, uint64_t offset);

/* A function of a device: writes `size` bytes from byte `offset` on. Returns 0, or a negative error
 * number. */
typedef int (*extant_write_fn)(void *user, const void *data, size_t size, uint64_t offset);

/* A function of a device: makes durable what was written. Returns 0, or a negative error number. */
typedef int (*extant_flush_fn)(void *user);

/* A function of a device: its last user is gone, and `user` can be freed. */
typedef void (*extant_release_fn)(void *user);

/* Nothing is written to the image. A journal is replayed in memory. */
#define EXTANT_READ_ONLY 1u

/* Reads what can be read of a damaged image; implies EXTANT_READ_ONLY. */
#define EXTANT_RESCUE 2u

/* How an image is used. Begin with { .size = sizeof(extant_options) }: zero means the default for every
 * other field. */
typedef struct extant_options {
    /* sizeof(extant_options). */
    size_t size;
    /* EXTANT_READ_ONLY and the like. */
    uint32_t flags;
    /* The partition; 0 for the only one that has a file system. */
    uint32_t partition;
    /* The byte at which the file system begins, if it is not a partition. */
    uint64_t offset;
    /* Memory for the caches of the mount, in bytes. */
    uint64_t cache_bytes;
    /* The owner of files that are created. */
    uint32_t uid;
    /* The group of files that are created. */
    uint32_t gid;
    /* Gets the messages of the mount, with message_user. */
    extant_message_fn message;
    /* The first argument of message. */
    void *message_user;
} extant_options;

/* A device of the caller. Its functions are called by several threads, but never by two at once. They must
 * not call functions of this library. */
typedef struct extant_device {
    /* sizeof(extant_device). */
    size_t size;
    /* The bytes of the device; the last part of a sector of 512 is not used. */
    uint64_t bytes;
    /* The first argument of every function. */
    void *user;
    /* Must be given. */
    extant_read_fn read;
    /* NULL: the device can only be read. */
    extant_write_fn write;
    /* NULL: what was written is durable. */
    extant_flush_fn flush;
    /* NULL: nothing to be done at the end. */
    extant_release_fn release;
} extant_device;

/* A time: seconds since 1970, and nanoseconds from 0 to 999999999. */
typedef struct extant_time {
    int64_t seconds;
    uint32_t nanoseconds;
} extant_time;

/* The attributes of a file. */
typedef struct extant_metadata {
    /* The inode number. */
    uint64_t ino;
    /* Bytes of content. */
    uint64_t bytes;
    /* Storage in units of 512 bytes. */
    uint64_t blocks;
    /* The kind (S_IFREG 0100000, S_IFDIR 0040000 and so on) and the permissions, as st_mode of Linux. */
    uint32_t mode;
    /* Names of the file. */
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
    /* Of a device inode. */
    uint32_t rdev_major;
    uint32_t rdev_minor;
    extant_time accessed;
    extant_time modified;
    extant_time changed;
    /* The creation; zero if it is not known. */
    extant_time created;
} extant_metadata;

/* A name in a directory. */
typedef struct extant_dirent {
    /* The inode number. */
    uint64_t ino;
    /* The kind, as in the mode of extant_metadata; 0 if it is not known. */
    uint32_t kind;
    /* Bytes of the name. */
    uint32_t length;
    /* The name, ended by a zero. */
    char name[256];
} extant_dirent;

/* The space of a file system. */
typedef struct extant_space {
    /* All of it, in bytes, without the file system's own structures. */
    uint64_t total;
    /* Free bytes, the reserve for root included. */
    uint64_t free;
    /* Free bytes for users without privilege. */
    uint64_t available;
    /* Files that there can be. */
    uint64_t files;
    /* Files that can still be created. */
    uint64_t files_free;
} extant_space;

/* extant_open: reads are permitted. */
#define EXTANT_READ 1u

/* extant_open: writes are permitted. */
#define EXTANT_WRITE 2u

/* extant_open: each write goes to the end of the file. */
#define EXTANT_APPEND 4u

/* extant_open: a missing file is created. */
#define EXTANT_CREATE 8u

/* extant_open: the file is created and must not exist. */
#define EXTANT_NEW 16u

/* extant_open: the content is removed. */
#define EXTANT_TRUNCATE 32u

/* extant_chown and extant_lchown: leaves owner or group as it is. */
#define EXTANT_UNCHANGED 4294967295u

/* ---- The library itself ---- */

/* The version of the library, as in "0.1.0". */
const char *extant_version(void);

/* ---- Images and mounts ---- */

/* The image file or block device at path. The words of the command line work, too: "disk.img@2" is a
 * partition. The file is opened when the image is mounted, formatted or checked. Release the image with
 * extant_image_free. */
int extant_image_open(const char *path, const extant_options *options, extant_image **image,
    extant_error *error);

/* A device whose functions are the caller's. They are called until release is, which may be at the end of
 * a mount. If this function fails, release is not called. */
int extant_image_device(const extant_device *device, const extant_options *options, extant_image **image,
    extant_error *error);

/* Memory of so many bytes, all zeroes; extant_image_format makes a file system in it. */
int extant_image_memory(uint64_t bytes, const extant_options *options, extant_image **image,
    extant_error *error);

/* Makes an image file of so many bytes with the files of tree: a directory, a tar archive or an OCI image.
 * The path must not exist. time, in seconds since 1970, is that of the file system's own structures: the
 * same tree gives the same bytes. */
int extant_image_build(const char *tree, const char *path, uint64_t bytes, int64_t time, extant_error *error);

/* Makes an empty ext4 file system with the defaults of mke2fs, over whatever is there. */
int extant_image_format(extant_image *image, extant_error *error);

/* Checks the file system and changes nothing. Returns how many problems it has, and calls each, unless
 * that is NULL, with user and each problem; of problems without number, only with the first ones of each
 * kind. */
int64_t extant_image_check(extant_image *image, extant_problem_fn each, void *user, extant_error *error);

/* Ends the use of an image. Its mounts stay. */
int extant_image_free(extant_image *image, extant_error *error);

/* Mounts the file system of an image. A journal that needs it is replayed first. End it with
 * extant_unmount: a program that exits without it leaves what a crash leaves. */
int extant_mount(extant_image *image, extant_fs **fs, extant_error *error);

/* Makes everything durable, marks the image clean and ends the mount, also if it returns an error: -EIO or
 * -ENOSPC with the first thing that could not be made durable. Open files and directories fail with -EBADF
 * from then on, and keep the image locked until they are closed. */
int extant_unmount(extant_fs *fs, extant_error *error);

/* Makes durable everything that was written so far. */
int extant_sync(extant_fs *fs, extant_error *error);

/* The space of the file system. */
int extant_statfs(extant_fs *fs, extant_space *space, extant_error *error);

/* 1 if nothing can be changed, by request or after an error; otherwise 0. */
int extant_is_read_only(extant_fs *fs, extant_error *error);

/* ---- Files ---- */

/* Opens a file. flags are EXTANT_READ and the like; mode has the permissions of a file that is created.
 * There is no umask. Close it with extant_close. */
int extant_open(extant_fs *fs, const char *path, uint32_t flags, uint32_t mode, extant_file **file,
    extant_error *error);

/* Closes a file. Its data is durable after extant_fsync or extant_unmount, and not by this. */
int extant_close(extant_file *file, extant_error *error);

/* Reads up to size bytes at the position of the file, which moves. Returns how many there were: 0 at the
 * end. */
int64_t extant_read(extant_file *file, void *buffer, size_t size, extant_error *error);

/* Writes size bytes at the position of the file, which moves. Returns how many were written: all of them,
 * unless the image is full. */
int64_t extant_write(extant_file *file, const void *data, size_t size, extant_error *error);

/* Reads from byte offset on, without a change of the position. */
int64_t extant_pread(extant_file *file, void *buffer, size_t size, uint64_t offset, extant_error *error);

/* Writes at byte offset, without a change of the position. */
int64_t extant_pwrite(extant_file *file, const void *data, size_t size, uint64_t offset, extant_error *error);

/* Moves the position. whence is SEEK_SET (0), SEEK_CUR (1) or SEEK_END (2). Returns the new position. */
int64_t extant_seek(extant_file *file, int64_t offset, int whence, extant_error *error);

/* Cuts the file, or extends it with zeroes that take no space. */
int extant_ftruncate(extant_file *file, uint64_t bytes, extant_error *error);

/* Makes content and attributes durable. -EIO or -ENOSPC if a write of this file was lost. */
int extant_fsync(extant_file *file, extant_error *error);

/* As extant_fsync, without attributes that reading the content does not need. */
int extant_fdatasync(extant_file *file, extant_error *error);

/* The attributes of an open file. */
int extant_fstat(extant_file *file, extant_metadata *stat, extant_error *error);

/* ---- Listings ---- */

/* Opens a directory to list it. Close it with extant_closedir. */
int extant_opendir(extant_fs *fs, const char *path, extant_dir **dir, extant_error *error);

/* The next name of a directory, in the order of their bytes, without "." and "..". Returns 1, or 0 at the
 * end. */
int extant_readdir(extant_dir *dir, extant_dirent *entry, extant_error *error);

/* Closes a directory. */
int extant_closedir(extant_dir *dir, extant_error *error);

/* ---- Names ---- */

/* Makes a directory. */
int extant_mkdir(extant_fs *fs, const char *path, uint32_t mode, extant_error *error);

/* Makes a directory and all that are missing above it, with the permissions 0755. One that exists is no
 * error. */
int extant_mkdirs(extant_fs *fs, const char *path, extant_error *error);

/* Removes a file or a symbolic link. */
int extant_unlink(extant_fs *fs, const char *path, extant_error *error);

/* Removes an empty directory. */
int extant_rmdir(extant_fs *fs, const char *path, extant_error *error);

/* Removes a directory and everything below it. */
int extant_remove_all(extant_fs *fs, const char *path, extant_error *error);

/* Renames a file or directory. A file at the new path, or an empty directory, is replaced, without a
 * moment in which neither is there. */
int extant_rename(extant_fs *fs, const char *from, const char *to, extant_error *error);

/* Makes a symbolic link that leads to target. */
int extant_symlink(extant_fs *fs, const char *target, const char *path, extant_error *error);

/* The target of a symbolic link, without a zero at its end. Returns its length. -ERANGE if it does not
 * fit; if size is 0, only the length is returned. */
int64_t extant_readlink(extant_fs *fs, const char *path, void *buffer, size_t size, extant_error *error);

/* Gives the file at path another name. */
int extant_link(extant_fs *fs, const char *path, const char *name, extant_error *error);

/* Copies a file or a whole directory of the host into the image. The path in the image must not exist. */
int extant_copy_in(extant_fs *fs, const char *host, const char *path, extant_error *error);

/* Copies a file or a whole directory of the image to the host, where the path must not exist. */
int extant_copy_out(extant_fs *fs, const char *path, const char *host, extant_error *error);

/* Writes the tree at path as a tar archive in the PAX format: calls output with user and each piece, in
 * order and in the same thread. An archive that fails ends at a place where tar reports that more must
 * follow. */
int extant_export(extant_fs *fs, const char *path, extant_output_fn output, void *user, extant_error *error);

/* ---- Attributes ---- */

/* The attributes of a file. A symbolic link is followed. */
int extant_stat(extant_fs *fs, const char *path, extant_metadata *stat, extant_error *error);

/* The attributes of a file, or of the symbolic link itself. */
int extant_lstat(extant_fs *fs, const char *path, extant_metadata *stat, extant_error *error);

/* Sets the permission bits. */
int extant_chmod(extant_fs *fs, const char *path, uint32_t mode, extant_error *error);

/* Sets owner and group; EXTANT_UNCHANGED leaves one as it is. A symbolic link is followed. */
int extant_chown(extant_fs *fs, const char *path, uint32_t uid, uint32_t gid, extant_error *error);

/* As extant_chown, of a symbolic link itself. */
int extant_lchown(extant_fs *fs, const char *path, uint32_t uid, uint32_t gid, extant_error *error);

/* Sets the times of the last access and the last change; NULL leaves one as it is. */
int extant_utimes(extant_fs *fs, const char *path, const extant_time *accessed, const extant_time *modified,
    extant_error *error);

/* The value of an extended attribute, whose name has its prefix, as in "user.mime_type". Returns its
 * length. -ENODATA if there is none; -ERANGE if it does not fit; if size is 0, only the length is
 * returned. */
int64_t extant_getxattr(extant_fs *fs, const char *path, const char *name, void *buffer, size_t size,
    extant_error *error);

/* Sets an extended attribute, new or not. */
int extant_setxattr(extant_fs *fs, const char *path, const char *name, const void *value, size_t size,
    extant_error *error);

/* Removes an extended attribute. */
int extant_removexattr(extant_fs *fs, const char *path, const char *name, extant_error *error);

/* The names of a file's extended attributes, each ended by a zero. Returns the length of all. -ERANGE if
 * they do not fit; if size is 0, only the length is returned. */
int64_t extant_listxattr(extant_fs *fs, const char *path, void *buffer, size_t size, extant_error *error);

#ifdef __cplusplus
}
#endif

#endif
