/* Reads, appends, makes directories and walks in partition 2 of a disk image, as crates/extant/examples/embed.rs does:
 * cc embed.c $(pkg-config --cflags --libs extant) -o embed && ./embed disk.img */
#include <extant.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static extant_error error;

static int failed(void)
{
    fprintf(stderr, "embed: %s\n", error.text);
    return 1;
}

static int walk(extant_fs *fs, const char *path)
{
    extant_dir *dir;
    extant_dirent entry;
    int more;

    if (extant_opendir(fs, path, &dir, &error) < 0)
        return failed();
    while ((more = extant_readdir(dir, &entry, &error)) > 0) {
        char below[4096];
        extant_metadata stat;

        snprintf(below, sizeof below, "%s/%s", path, entry.name);
        if (extant_lstat(fs, below, &stat, &error) < 0)
            return failed();
        printf("%" PRIu64 " %s\n", stat.bytes, below);
        if ((stat.mode & 0170000) == 0040000 && walk(fs, below))
            return 1;
    }
    return more < 0 ? failed() : extant_closedir(dir, &error) < 0;
}

int main(int argc, char **argv)
{
    extant_options options = { .size = sizeof options, .partition = 2 };
    const char *line = "edited by embed\n";
    char users[65536];
    extant_image *image;
    extant_file *file;
    extant_fs *fs;
    int64_t n;

    if (argc != 2)
        return fprintf(stderr, "usage: embed IMAGE\n"), 2;
    if (extant_image_open(argv[1], &options, &image, &error) < 0 || extant_mount(image, &fs, &error) < 0)
        return failed();
    if (extant_open(fs, "/etc/passwd", EXTANT_READ, 0, &file, &error) < 0
        || (n = extant_read(file, users, sizeof users - 1, &error)) < 0 || extant_close(file, &error) < 0)
        return failed();
    users[n] = 0;
    for (char *user = strtok(users, "\n"); user; user = strtok(NULL, "\n"))
        printf("%.*s\n", (int)strcspn(user, ":"), user);
    if (extant_open(fs, "/etc/motd", EXTANT_APPEND | EXTANT_CREATE, 0644, &file, &error) < 0
        || extant_write(file, line, strlen(line), &error) < 0 || extant_close(file, &error) < 0
        || extant_mkdirs(fs, "/opt/app/data", &error) < 0)
        return failed();
    if (walk(fs, "/etc"))
        return 1;
    return extant_unmount(fs, &error) < 0 || extant_image_free(image, &error) < 0 ? failed() : 0;
}
