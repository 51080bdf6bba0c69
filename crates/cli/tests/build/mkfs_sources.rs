//! `extant mkfs` with sources: the same bytes from any kind of source, and the size that a source needs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Dir, debugfs, extant, extant_path, fsck_clean, loop_mounts_work, tool};

/// Runs a bash script in the test's directory, with the command as `extant`.
#[track_caller]
fn shell(dir: &Dir, script: &str) {
    let bin = extant_path().parent().expect("a directory");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("PATH"));
    let done = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir.path("."))
        .env("PATH", path)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .expect("bash runs");
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn a_directory_and_its_archives_make_the_same_image() {
    let dir = Dir::new();
    dir.tree();
    shell(
        &dir,
        r#"
        ln src/big src/etc/hard; for i in $(seq 500); do echo $i > src/etc/name-$i; done
        tar -cS --format=pax --xattrs -C src . > a.tar
        (cd src; find . -print0 | sort -Rz > ../order)
        tar -cS --format=pax --xattrs -C src --no-recursion --null -T order . | gzip > shuffled.tar.gz
        extant mkfs -q -U content --size auto -d src directory.img
        extant mkfs -q -U content --size auto --from a.tar --threads 8 tar.img
        extant mkfs -q -U content --size auto --from - stream.img < shuffled.tar.gz
        cmp directory.img tar.img; cmp directory.img stream.img
        extant mkfs -q --size auto -d src random.img; ! cmp -s directory.img random.img
        "#,
    );
    fsck_clean(&dir.text("directory.img"));
}

/// An archive contains everything that the image does, so the second image equals the first.
#[test]
fn an_image_of_the_archive_of_an_image_is_that_image() {
    let dir = Dir::new();
    dir.tree();
    shell(
        &dir,
        r#"
        ln src/big src/etc/hard; for i in $(seq 300); do echo $i > src/etc/name-$i; done
        setfattr -n user.a -v "$(printf 'a%.0s' $(seq 300))" src/etc/name-1; setfacl -m u:5:rw src/etc/name-2
        # Data and holes that end within blocks of every size.
        printf x | dd of=src/odd bs=1 seek=1234567 status=none; truncate -s 3333333 src/odd
        for options in "-t ext4" "-t ext2 -b 1024" "-t ext4 -b 4096 -O inline_data" "-t ext3 -b 2048"; do
            extant mkfs -qF -U content $options --size auto -d src one.img
            extant export one.img > one.tar
            extant mkfs -qF -U content $options --size auto --from one.tar two.img; cmp one.img two.img
            extant export one.img | extant mkfs -qF -U content $options --size auto --from - two.img; cmp one.img two.img
        done
        # With names in it, lost+found counts like any directory.
        uuid() { dumpe2fs -h $1 2>/dev/null | grep 'Filesystem UUID'; }
        extant mkdir two.img:/lost+found/x; extant export two.img > more.tar
        extant mkfs -q -U content --size auto --from more.tar more.img; test "$(uuid one.img)" != "$(uuid more.img)"
        "#,
    );
    fsck_clean(&dir.text("two.img"));
}

/// Another type, block size, size and features, from a file and a partition; the bytes are the same as through an
/// archive.
#[test]
fn an_old_image_is_the_source_of_a_new_one() {
    let dir = Dir::new();
    dir.tree();
    shell(
        &dir,
        r#"
        ln src/big src/etc/hard; for i in $(seq 300); do echo $i > src/etc/name-$i; done; mkfifo src/pipe
        setfattr -n user.a -v "$(printf 'a%.0s' $(seq 300))" src/etc/name-1; setfacl -m u:5:rw src/etc/name-2
        printf x | dd of=src/odd bs=1 seek=1234567 status=none; truncate -s 3333333 src/odd
        extant mkfs -q -U content -t ext4 -d src old.img 64M
        for options in "-t ext4" "-t ext2 -b 1024" "-t ext4 -b 4096 -O inline_data" "-t ext3 -b 2048"; do
            extant mkfs -qF -U content $options --size auto --from image:old.img new.img
            cmp <(extant export old.img) <(extant export new.img); e2fsck -fn new.img
            extant export old.img | extant mkfs -qF -U content $options --size auto --from - other.img; cmp new.img other.img
        done
        # Back from the last one, and more room.
        extant mkfs -qF -U content -t ext4 --from image:new.img back.img 64M; cmp old.img back.img
        extant mkfs -qF --size min --from image:old.img min.img; extant mkfs -qF --size min+20M --from image:old.img more.img
        free() { dumpe2fs -h $1 2>/dev/null | awk -F: '/^Free blocks/ { f = $2 } /^Block size/ { b = $2 } END { print f * b }'; }
        test $(($(free more.img) - $(free min.img))) -ge $((20 << 20)); test $(free more.img) -lt $((30 << 20))
        # A partition, and refusals.
        truncate -s 100M disk; echo '2048,,L' | sfdisk -q disk; extant mkfs -qF -d src disk@1
        extant mkfs -qF --size auto --from image:disk@1 part.img; cmp <(extant export old.img) <(extant export part.img)
        ! extant mkfs -q --from image:old.img old.img 2> said; grep -F 'old.img: it is the source of the image' said
        ! extant mkfs -q --size auto --from image:none.img x.img 2> said; grep -F 'none.img' said; test ! -e x.img
        ! extant mkfs -q --size auto+ --from image:old.img x.img 2> said; grep -F 'such as 200M' said
        # Damage is no source.
        cp old.img hurt.img; block=$(debugfs -R 'blocks /etc' hurt.img 2>/dev/null | awk '{ print $1 }')
        size=$(dumpe2fs -h hurt.img 2>/dev/null | awk '/^Block size/ { print $3 }')
        dd if=/dev/urandom of=hurt.img bs=$size seek=$block count=1 conv=notrunc status=none
        ! extant mkfs -q --size auto --from image:hurt.img x.img 2> said; grep -F 'hurt.img: directory of inode' said; test ! -e x.img
        "#,
    );
    fsck_clean(&dir.text("new.img"));
    fsck_clean(&dir.text("part.img"));
}

#[test]
fn flags_of_chattr_go_into_an_archive_and_out_of_it() {
    let dir = Dir::new();
    shell(
        &dir,
        r#"
        python3 - <<'E'
import io, tarfile
t = tarfile.open('flags.tar', 'w', format=tarfile.PAX_FORMAT)
def add(name, flags, kind=tarfile.REGTYPE):
    i = tarfile.TarInfo(name); i.type = kind; i.mode = 0o755; i.linkname = 'x' if kind == tarfile.SYMTYPE else ''
    i.pax_headers = {'SCHILY.fflags': flags}; t.addfile(i, io.BytesIO())
add('dir', 'sappnd,dirsync,topdir,projinherit', tarfile.DIRTYPE)
for n, f in enumerate(['schg', 'sappnd', 'nodump', 'undel', 'compress', 'noatime', 'journal-data', 'secdel', 'sync', 'notail']):
    add('dir/f%d' % n, f)
add('dir/all', 'schg,sappnd,nodump,noatime,uchg'); add('dir/link', 'schg,nodump', tarfile.SYMTYPE)
add('dir/fifo', 'schg', tarfile.FIFOTYPE); t.close()
E
        extant mkfs -q -U content --from flags.tar one.img 16M 2> said
        grep -x 'extant: flags.tar: left out, since an image has no place for it: the flag uchg (1 entry)' said
        flags() { debugfs -R "stat /dir/$1" one.img 2>/dev/null | sed -n 's/.*Flags: \(0x[0-9a-f]*\).*/\1/p'; }
        has() { test $(($(flags "$1") & ~0x80000)) = $(($2)); }
        n=0; for f in 10 20 40 2 4 80 4000 1 8 8000; do has f$n 0x$f; n=$((n + 1)); done
        has all 0xf0; has link 0x40; has fifo 0; has '' 0x20030020
        extant export one.img > two.tar; extant mkfs -q -U content --from two.tar two.img 16M; cmp one.img two.img
        "#,
    );
    fsck_clean(&dir.text("one.img"));
    if !loop_mounts_work() || Command::new("bsdtar").arg("--version").output().is_err() {
        eprintln!("skipped in part: needs loop mounts and bsdtar, which reads flags of the kernel's mount");
        return;
    }
    shell(
        &dir,
        r#"
        mkdir m; mount -o loop,ro one.img m; trap 'umount m' EXIT
        bsdtar -cf bsd.tar --format=pax -C m dir
        # bsdtar does not ask for the flags of links.
        list() { python3 -c 'import sys, tarfile
for i in tarfile.open(sys.argv[1]):
    if "dir" in i.name and not i.issym(): print(i.name.lstrip("./"), sorted(i.pax_headers.get("SCHILY.fflags", "").split(",")))' $1 | sort; }
        diff <(list bsd.tar) <(list two.tar)
        "#,
    );
}

#[test]
fn a_wrong_source_is_never_an_empty_file_system() {
    let dir = Dir::new();
    dir.tree();
    shell(
        &dir,
        r#"
        extant mkfs -q -d src old.img 64M; cp old.img boot.img
        head -c 1024 /dev/urandom | dd of=boot.img conv=notrunc status=none
        truncate -s 10M zeroes; : > empty; echo text > text; cp old.img named.tar; gzip -c old.img > old.img.gz
        head -c 4M /dev/urandom > noise; cp "$(command -v bash)" elf; printf 'QFI\373' > disk.qcow2; truncate -s 1M disk.qcow2
        truncate -s 3M disk; echo 'start=2048,type=83' | sfdisk -q disk
        refused() { "$@" 2> said && { echo "$@: status 0"; exit 1; }; test ! -e new.img; test $(wc -l < said) = 1; }
        for f in old.img boot.img named.tar; do
            refused extant mkfs --from $f new.img 64M; grep "not a tar archive" said
            grep -F "'extant mkfs --from image:$f --size auto NEW.img' copies its files" said
            refused extant mkfs -d $f new.img 64M
        done
        refused extant mkfs --from - new.img 64M < old.img; grep 'an ext2/3/4 file system follows' said
        refused extant mkfs --from - new.img 64M < boot.img; grep 'not a tar archive' said
        (cat old.img || true) | { refused extant mkfs --from - new.img 64M; }
        refused extant mkfs --from old.img.gz new.img 64M; grep 'file system follows' said
        for f in zeroes empty text noise elf disk.qcow2 disk /dev/null; do refused extant mkfs --from $f new.img 64M; done
        refused extant mkfs --from zeroes new.img 64M; grep 'no entries; with tar: in front' said
        refused extant mkfs --from disk.qcow2 new.img 64M; grep 'disk.qcow2.*qemu-nbd' said
        refused extant mkfs --from disk new.img 64M; grep 'disk@N' said
        tar -cf none.tar -T /dev/null; extant mkfs -q --from tar:none.tar new.img 64M
        "#,
    );
}

#[test]
fn a_docker_save_a_layout_and_their_archives_make_the_same_image() {
    let dir = Dir::new();
    dir.tree();
    shell(
        &dir,
        r#"
        rm src/fifo; extant mkfs -q -d src base.img 64M; extant export --format oci -o layout:latest base.img
        tar -cf archive.tar -C layout .; mkdir -p save/l; digest() { sha256sum $1 | cut -d ' ' -f 1; }
        extant export base.img > save/l/layer.tar
        printf '{"rootfs":{"diff_ids":["sha256:%s"]}}' $(digest save/l/layer.tar) > save/c.json
        printf '[{"Config":"c.json","RepoTags":["a:b"],"Layers":["l/layer.tar"]}]' > save/manifest.json
        tar -cf save.tar -C save .
        make() { rm -f new.img; extant mkfs -q -U content --size auto --from "$@" new.img; digest new.img; }
        expected=$(make oci:layout)
        for word in layout archive.tar save save.tar oci:archive.tar oci-archive:archive.tar:latest docker-archive:save.tar; do
            test "$(make $word)" = $expected
        done
        for f in archive.tar save.tar; do
            test "$(make - < $f)" = $expected; test "$(cat $f | make -)" = $expected; test "$(zstd -c $f | make -)" = $expected
            test "$(cat $f | make docker-archive:-)" = $expected
        done
        rm -f new.img; extant mkfs -q -U content --size auto -d layout new.img; test "$(digest new.img)" = $expected
        test "$(make tar:archive.tar)" != $expected; extant ls new.img | grep blobs
        test "$(make dir:layout)" != $expected; extant ls new.img | grep blobs
        "#,
    );
}

#[test]
fn the_size_follows_the_source_and_free_space_is_a_hole() {
    let dir = Dir::new();
    let tree = dir.tree();
    fs::write(dir.path("src/data"), vec![b'd'; 20_000_000]).expect("file");
    let (auto, min) = (dir.text("auto.img"), dir.text("min.img"));
    extant(&["mkfs", "-q", "--size", "auto", "-d", &tree, &auto]).ok();
    extant(&["mkfs", "-q", "--size=min", "-d", &tree, &min]).ok();
    fsck_clean(&auto);
    fsck_clean(&min);
    let size = |image: &str| fs::metadata(image).expect("image").len();
    assert!(size(&min) < size(&auto) && size(&auto) < 30_000_000, "{} {}", size(&min), size(&auto));
    // The content is not compressible and has few metadata blocks.
    let taken = fs::metadata(&auto).expect("image").blocks() * 512;
    let content = tool("du", &["-s", "-B1", "--apparent-size", &tree]);
    let content: u64 = content.split_whitespace().next().expect("a number").parse().expect("a number");
    assert!(taken < content + content / 50 + (1 << 20), "{taken} bytes for {content}");
}

#[test]
fn an_unfinished_image_is_removed_and_the_reason_is_printed() {
    let dir = Dir::new();
    let tree = dir.tree();
    fs::write(dir.path("src/data"), vec![b'd'; 20_000_000]).expect("file");
    let image = dir.text("disk.img");
    extant(&["mkfs", "-d", &tree, &image, "8M"]).fails(1, &["disk.img: ", "--size auto"]);
    extant(&["mkfs", "-b", "4096", "-N", "16", "-d", &tree, &image, "64M"]).fails(1, &["inodes", "-N"]);
    extant(&["mkfs", "--size", "auto", &image]).fails(1, &["-d or --from"]);
    extant(&["mkfs", "-U", "content", &image, "8M"]).fails(1, &["-d or --from"]);
    extant(&["mkfs", "--from", &tree, "--owner", "7", &image, "64M"]).fails(1, &["--owner"]);
    assert!(!Path::new(&image).exists());
}

/// UUIDs distinguish images in fstab(5): other bytes, trees or labels give another UUID, even at the same time.
#[test]
fn other_content_has_another_uuid() {
    let dir = Dir::new();
    shell(
        &dir,
        "export SOURCE_DATE_EPOCH=1000000000
        mkdir one two three; echo v1 > one/version; echo v2 > two/version; echo v1 > three/other
        uuid() { dumpe2fs -h $1 2>/dev/null | grep 'Filesystem UUID'; }
        for d in one two; do extant mkfs -q -U content -d $d $d.img 4M; done
        [ \"$(uuid one.img)\" != \"$(uuid two.img)\" ]
        for d in one three; do extant mkfs -q -F -d $d $d.img 4M; extant mkfs -q -F -L $d $d.empty 4M; done
        [ \"$(uuid one.img)\" != \"$(uuid three.img)\" ]; [ \"$(uuid one.empty)\" != \"$(uuid three.empty)\" ]
        extant mkfs -q -d one again.img 4M; cmp one.img again.img",
    );
}

#[test]
fn the_root_directory_has_the_owner_from_e_root_owner() {
    let dir = Dir::new();
    shell(
        &dir,
        "mkdir src; extant mkfs -q -d src -E root_owner=12:34 --owner 5:6 a.img 4M
        debugfs -R 'stat /' a.img 2>/dev/null | grep -q 'User: *12  *Group: *34 '",
    );
}

#[test]
fn no_entry_is_younger_than_the_source_date() {
    let dir = Dir::new();
    shell(
        &dir,
        r#"
        mkdir -p src/etc; touch src/etc/new; touch -d @1234567890 src/etc/old; tar -cf src.tar -C src .
        extant mkfs -q -d src directory.img 4M; extant mkfs -q --from src.tar tar.img 4M
        for image in directory.img tar.img; do
            time_of() { debugfs -R "stat $1" $image 2>/dev/null | sed -n 's/.*mtime: 0x\([0-9a-f]*\).*/\1/p'; }
            for path in / /etc /etc/new; do test "$(time_of $path)" = "$(printf %08x $SOURCE_DATE_EPOCH)"; done
            test "$(time_of /etc/old)" = "$(printf %08x 1234567890)"
        done
        "#,
    );
}

#[test]
fn times_that_inodes_cannot_hold_are_counted() {
    let dir = Dir::new();
    shell(
        &dir,
        r#"
        unset SOURCE_DATE_EPOCH; mkdir -p src/etc; touch src/now; touch -d 2100-01-01 src/etc/a src/etc/b src/etc/c
        moved() { echo "extant: $1: the time of $2 is moved to the nearest that inodes of $3 bytes hold, $4"; }
        extant mkfs -d src -I 128 old.img 4M 2>&1 >/dev/null | tail -n 1 | tee said
        test "$(cat said)" = "$(moved old.img '/etc/a and 2 other entries' 128 '1901 to 2038; use larger ones (-I 256)')"
        debugfs -R 'stat /etc/a' old.img 2>/dev/null | grep -q 'mtime: 0x7fffffff '
        test -z "$(extant mkfs -q -F -d src -I 128 old.img 4M 2>&1)"
        extant mkfs -d src new.img 4M 2>&1 >/dev/null | tee said; test ! -s said
        tar -c --format=pax --mtime=@99999999999 -C src now | extant mkfs --from - far.img 4M 2>&1 >/dev/null | tee said
        test "$(cat said)" = "$(moved far.img /now 256 '1901 to 2446')"
        "#,
    );
}

#[test]
fn owners_are_changed_for_all_or_by_a_file() {
    let dir = Dir::new();
    let (tree, image) = (dir.tree(), dir.text("disk.img"));
    extant(&["mkfs", "-q", "--from", &tree, "--owner", "5:6", &image, "64M"]).ok();
    let shown = debugfs(&image, "stat /etc/passwd");
    assert!(shown.contains("User:     5   Group:     6"), "{shown}");
    fs::write(dir.path("owners"), "etc/passwd 7:8\n").expect("file");
    extant(&["mkfs", "-qF", "--from", &tree, "--owners", &dir.text("owners"), &image, "64M"]).ok();
    let shown = debugfs(&image, "stat /etc/passwd");
    assert!(shown.contains("User:     7   Group:     8"), "{shown}");
    fsck_clean(&image);
}

#[test]
fn an_image_that_is_its_own_source_is_refused_and_stays() {
    let dir = Dir::new();
    dir.tree();
    shell(
        &dir,
        r#"
        tar -cf t.tar -C src .; ln t.tar hard.tar; ln -s t.tar soft.tar; cp t.tar before.tar
        cp src/big src/in.img
        mkdir -p oci/blobs/sha256; cp t.tar oci/blobs/sha256/blob; ln -s "$PWD" around
        refused() { "$@" 2> said && exit 1 || test $? = 1; grep "of the image; name a" said; }
        for t in t.tar hard.tar soft.tar; do refused extant mkfs -F --from t.tar --size auto $t; done
        refused extant mkfs -F --from - --size auto hard.tar < t.tar
        refused extant mkfs -n --from t.tar --size auto t.tar
        refused extant mkfs -F --from oci:oci:tag --size auto oci/blobs/sha256/blob
        for t in src/in.img src/new.img around/src/etc/new.img; do refused extant mkfs -F -d src $t 64M; done
        (cd src; refused extant mkfs -F -d . new.img 64M; rm said)
        cmp t.tar before.tar; cmp oci/blobs/sha256/blob before.tar; cmp src/in.img src/big
        test ! -e src/new.img; test ! -e src/etc/new.img
        extant mkfs -q -d src src.img 64M
        "#,
    );
}

#[test]
fn a_device_that_is_its_own_source_by_another_name_is_refused() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    dir.tree();
    shell(
        &dir,
        r#"
        tar -cf t.tar -C src .; cp t.tar before.tar
        device=$(losetup --find --show t.tar); trap 'losetup -d "$device"' EXIT
        mknod other b $(stat -c '0x%t 0x%T' "$device")
        extant mkfs -F --from other "$device" 2> said && exit 1
        grep 'it is the source of the image; name another file' said
        cmp t.tar before.tar
        "#,
    );
}

#[test]
fn a_found_size_is_the_length_of_an_image_that_was_longer() {
    let dir = Dir::new();
    dir.tree();
    shell(
        &dir,
        r#"
        extant mkfs -q -U content --size auto -d src new.img
        truncate -s 1G old.img; extant mkfs -q -F -U content --size auto -d src old.img; cmp new.img old.img
        truncate -s 10 old.img; extant mkfs -q -F -U content --size auto -d src old.img; cmp new.img old.img
        extant mkfs -q -U content --size auto --format android-sparse -d src new.simg
        truncate -s 1G old.simg
        extant mkfs -q -F -U content --size auto --format android-sparse -d src old.simg; cmp new.simg old.simg
        truncate -s 1G old.img; extant mkfs -q -F -d src old.img 64M; test $(stat -c %s old.img) = $((1 << 30))
        "#,
    );
}

#[test]
fn a_signal_leaves_no_image() {
    let dir = Dir::new();
    shell(
        &dir,
        r#"
        # The command's output is not read, so it waits between making the image and writing it.
        mkfifo out; exec 3<> out; dd if=/dev/zero of=out bs=64K count=1 status=none
        for signal in TERM INT HUP; do
            env --default-signal extant mkfs disk.img 1G >&3 2> err & pid=$!
            until test -e disk.img; do kill -0 $pid; done
            kill -$signal $pid; status=0; wait $pid || status=$?
            test $status = $((128 + $(kill -l $signal)))
            test ! -e disk.img
        done
        # An image that is overwritten is emptied when the output has been written.
        extant mkfs -q disk.img 16M; cp disk.img before.img
        extant mkfs -F disk.img >&3 2> err & pid=$!
        sleep 0.2; kill -TERM $pid; status=0; wait $pid || status=$?
        test $status = 143; test "$(cat err)" = 'extant: terminated'; cmp disk.img before.img
        mkdir src; head -c 100M /dev/zero | tr '\0' z > src/large
        extant mkfs -q -F -d src disk.img 256M 2> err & pid=$!
        while test $(stat -c %s disk.img) = $((16 << 20)); do kill -0 $pid; done
        kill -TERM $pid; status=0; wait $pid || status=$?
        test $status = 143
        grep -x 'extant: disk.img: terminated; what it held is lost, and it has no file system: make it again' err
        "#,
    );
}

#[test]
fn a_signal_while_a_stream_is_read_leaves_everything_as_it_was() {
    let dir = Dir::new();
    shell(
        &dir,
        r#"
        extant mkfs -q old.img 16M; cp old.img before.img
        mkdir src; seq 100000 > src/file; tar -cf whole.tar src
        mkdir empty; cd empty
        for signal in TERM INT HUP; do
            for image in ../old.img new.img; do
                rm -f ../in; mkfifo ../in; exec 3<> ../in
                TMPDIR=$PWD env --default-signal extant mkfs -F --from - $image 16M <&3 2> ../err & pid=$!
                # More than a FIFO's capacity, and less than the archive: the command reads, and waits for more.
                head -c 200000 ../whole.tar >&3
                kill -0 $pid; kill -$signal $pid; status=0; wait $pid || status=$?
                test $status = $((128 + $(kill -l $signal)))
                test -z "$(ls -A)"; cmp ../old.img ../before.img
            done
        done
        "#,
    );
}

/// A small file system of the host, which is unmounted at drop.
struct Small(String);

impl Small {
    fn new(dir: &Dir) -> Option<Small> {
        let at = dir.text("small");
        fs::create_dir(&at).expect("directory");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=4M", "none", &at]).output().expect("mount");
        mounted.status.success().then_some(Small(at))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_reported_once_with_the_next_step() {
    let dir = Dir::new();
    let tree = dir.tree();
    fs::write(dir.path("src/data"), vec![b'd'; 20_000_000]).expect("file");
    let image = dir.text("disk.img");
    extant(&["mkfs", "-q", "-d", &tree, &image, "64M"]).ok();
    let Some(small) = Small::new(&dir) else { return };
    let there = format!("{}/out", small.0);
    let said = format!("extant: {there}: No space left on device; free some space, or write to another disk\n");
    assert_eq!(extant(&["mkfs", "-q", "-d", &tree, &there, "64M"]).fails(1, &[]), said);
    for more in [&["--rescue"][..], &[]] {
        assert_eq!(extant(&[&["export", "-o", &there, &image], more].concat()).fails(8, &[]), said);
    }
    assert!(!Path::new(&there).exists());
    fs::write(&there, [1; 1024]).expect("a file");
    let lost = extant(&["mkfs", "-q", "-d", &tree, &there, "64M"]).fails(1, &[]);
    let expected = said.trim_end().to_owned() + "; what it held is lost, and it has no file system: make it again\n";
    assert_eq!(lost, expected);
    fs::remove_file(&there).expect("removed");
    let none = dir.text("none");
    let said = extant(&["export", "-o", &format!("{none}/x.tar"), &image]).fails(8, &[]);
    assert_eq!(said, format!("extant: {none}: No such file or directory; make the directory, or name another one\n"));
}

#[test]
fn a_dry_run_fails_where_the_real_one_does() {
    let dir = Dir::new();
    let tree = dir.tree();
    fs::write(dir.path("src/data"), vec![b'd'; 20_000_000]).expect("file");
    let image = dir.text("disk.img");
    let real = extant(&["mkfs", "-d", &tree, &image, "8M"]).fails(1, &["--size auto"]);
    assert_eq!(extant(&["mkfs", "-n", "-d", &tree, &image, "8M"]).fails(1, &[]), real);
    extant(&["mkfs", "-n", "-d", &tree, "--size", "auto", &image]).ok();
    assert!(!Path::new(&image).exists());
}

#[test]
fn owners_without_a_source_are_refused() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    let advice = "it needs a source; give one with -d or --from";
    extant(&["mkfs", "--owner", "0:0", &image, "8M"]).fails(1, &["--owner: ", advice]);
    extant(&["mkfs", "--owners", "/dev/null", &image, "8M"]).fails(1, &["--owners: ", advice]);
    assert!(!Path::new(&image).exists());
}

/// From a host's directory, an image, and by an option; names are found in any case through the index, too.
#[test]
fn directories_that_ignore_case_stay_so_in_a_new_image() {
    let dir = Dir::new();
    fs::create_dir_all(dir.path("src/games/Deep")).expect("directories");
    fs::create_dir(dir.path("src/plain")).expect("directory");
    for i in 0..300 {
        for at in ["games", "games/Deep", "plain"] {
            let name = format!("src/{at}/Straße-{i:03}-{}", "N".repeat(60));
            fs::write(dir.path(&name), name.as_bytes()).expect("written");
        }
    }
    let one = dir.text("one.img");
    let made = ["mkfs", "-q", "-b", "1024", "-O", "casefold", "--casefold", "games", "-d", &dir.text("src")];
    extant(&[&made[..], &[&one, "32M"]].concat()).ok();
    let found = |image: &str, path: &str| extant(&["cat", image, path]).code == Some(0);
    let name = |case: &str, i: u32| format!("{case}-{i:03}-{}", "n".repeat(60));
    let check = |image: &str| {
        // It compares every hash with that of the folded name.
        fsck_clean(image);
        extant(&["fsck", "-fn", image]).ok();
        for i in [0, 150, 299] {
            assert!(found(image, &format!("/games/{}", name("strasse", i))), "{image} {i}");
            assert!(found(image, &format!("/games/DEEP/{}", name("STRASSE", i))), "{image} {i}");
            assert!(!found(image, &format!("/plain/{}", name("strasse", i))), "{image} {i}");
        }
        let flags = |path: &str| debugfs(image, &format!("stat {path}"));
        assert!(flags("/games").contains("Flags: 0x40081000"), "{}", flags("/games"));
        assert!(flags("/plain").contains("Flags: 0x81000"), "{}", flags("/plain"));
    };
    check(&one);
    // Another block size and inode, so that all is made anew.
    let two = dir.text("two.img");
    extant(&[
        "mkfs",
        "-q",
        "-b",
        "1024",
        "-I",
        "512",
        "-O",
        "casefold",
        "--from",
        &format!("image:{one}"),
        &two,
        "40M",
    ])
    .ok();
    check(&two);
    // Without the feature, names are as they are.
    let three = dir.text("three.img");
    extant(&["mkfs", "-q", "--from", &format!("image:{one}"), &three, "32M"]).ok();
    fsck_clean(&three);
    assert!(!found(&three, &format!("/games/{}", name("strasse", 0))));
    extant(&["mkfs", "-q", "--casefold", "/", "-d", &dir.text("src"), &three, "32M"]).fails(1, &["needs -O casefold"]);
    extant(&[&made[..5], &["casefold", "--casefold", "none", "-d", &dir.text("src"), &three, "32M"]].concat())
        .fails(1, &["--casefold none: no such directory"]);
    // An empty file system whose root ignores case.
    extant(&["mkfs", "-qF", "-O", "casefold", "--casefold", "/", &three, "32M"]).ok();
    extant(&["mkdir", &format!("{three}:/Dir")]).ok();
    fsck_clean(&three);
    extant(&["mkdir", &format!("{three}:/dIR")]).fails(8, &["exists"]);
    // Names that become one.
    fs::write(dir.path("src/games/STRASSE-000-nn"), "").expect("written");
    fs::write(dir.path("src/games/strasse-000-NN"), "").expect("written");
    extant(&[&made[..], &[&dir.text("four.img"), "32M"]].concat()).fails(1, &["/games", "ignores case", "one name"]);
    assert!(!dir.path("four.img").exists());
}

/// The host's kernel may lack the feature.
#[test]
fn a_folder_of_the_host_that_ignores_case_stays_so() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return;
    }
    let dir = Dir::new();
    let (host, mnt, made) = (dir.text("host.img"), dir.text("mnt"), dir.text("made.img"));
    extant(&["mkfs", "-q", "-O", "casefold", "--casefold", "/", &host, "16M"]).ok();
    fs::create_dir(&mnt).expect("directory");
    let mounted = crate::common::run("mount", &["-o", "loop", &host, &mnt]);
    if mounted.code != Some(0) {
        eprintln!("skipped: the kernel does not mount images with casefold");
        return;
    }
    let worked = fs::create_dir(format!("{mnt}/Dir")).and_then(|()| fs::write(format!("{mnt}/Dir/File"), "x"));
    let done = extant(&["mkfs", "-q", "-O", "casefold", "-d", &mnt, &made, "16M"]);
    crate::common::umount(&[&mnt]);
    worked.expect("written");
    done.ok();
    fsck_clean(&made);
    assert_eq!(extant(&["cat", &made, "/dIR/fILE"]).ok(), "x");
}
