//! The C library as a C program meets it: built by cc with the flags of pkg-config, run, and run under valgrind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use extant::Image;
use extant_oracle::{expect_clean, run_ok};

const PARTITION_START: u64 = 2 << 20;
const PARTITION_BYTES: u64 = 32 << 20;

fn source(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name).display().to_string()
}

/// The library, installed below a folder, and a disk with a file system in partition 2.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().expect("a folder") };
        // Cargo puts the libraries of the package beside its tests.
        let built = std::env::current_exe().expect("the test").parent().expect("a folder").to_path_buf();
        let top = source("../..");
        let args = [built.display().to_string(), String::new(), place.text("usr"), place.text("usr/lib")];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run_ok(&format!("{top}/scripts/install-lib.sh"), &args).expect("installed");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The flags that pkg-config prints.
    fn flags(&self, how: &[&str]) -> Vec<String> {
        let out = Command::new("pkg-config")
            .args(how)
            .arg("extant")
            .env("PKG_CONFIG_PATH", self.path("usr/lib/pkgconfig"))
            .output()
            .expect("pkg-config");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles `from` of this package.
    fn compile(&self, from: &str, to: &str, more: &[&str]) -> String {
        let (from, to) = (source(from), self.text(to));
        let strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g", &from];
        let flags = self.flags(&["--cflags", "--libs"]);
        let args = strict.into_iter().chain(flags.iter().map(String::as_str)).chain(more.iter().copied());
        let args: Vec<&str> = args.chain(["-o", &to]).collect();
        run_ok("cc", &args).expect("compiled");
        to
    }

    /// Runs a program with the library, and returns its status and its output.
    fn run(&self, command: &[&str]) -> (Option<i32>, String) {
        let out = Command::new(command[0])
            .args(&command[1..])
            .env("LD_LIBRARY_PATH", self.path("usr/lib"))
            .output()
            .expect("started");
        let text = [out.stdout, out.stderr].concat();
        (out.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    /// A disk whose partition 2 has a file system.
    fn disk(&self) -> String {
        let mut table = vec![0; 512];
        for (number, start, bytes) in [(0, 1 << 20, 1 << 20), (1, PARTITION_START, PARTITION_BYTES)] {
            let entry = &mut table[446 + 16 * number..][..16];
            entry[4] = 0x83;
            entry[8..12].copy_from_slice(&u32::try_from(start / 512).expect("small").to_le_bytes());
            entry[12..].copy_from_slice(&u32::try_from(bytes / 512).expect("small").to_le_bytes());
        }
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        let disk = self.path("disk.img");
        fs::write(&disk, &table).expect("a table");
        let file = fs::File::options().write(true).open(&disk).expect("a disk");
        file.set_len(PARTITION_START + PARTITION_BYTES).expect("a size");
        drop(file);
        let mounted = Image::open(&disk).partition(2).format().expect("formatted").mount().expect("mounted");
        mounted.create_dir("/etc").expect("a directory");
        mounted.write("/etc/passwd", "root:x:0:0\ndaemon:x:1:1\n").expect("a file");
        mounted.unmount().expect("unmounted");
        fs::create_dir_all(self.path("in/below")).expect("directories");
        fs::write(self.path("in/below/file"), "text\n").expect("a file");
        disk.display().to_string()
    }

    fn check(&self, disk: &str) {
        let bytes = fs::read(disk).expect("the disk");
        let partition = self.path("partition.img");
        fs::write(&partition, &bytes[PARTITION_START as usize..]).expect("a copy");
        expect_clean(&partition).expect("clean");
    }
}

#[test]
fn example_in_c_does_what_the_one_in_rust_does() {
    let place = Place::new();
    let (disk, program) = (place.disk(), place.compile("examples/embed.c", "embed", &[]));
    let (status, said) = place.run(&[&program, &disk]);
    assert_eq!((status, said.as_str()), (Some(0), "root\ndaemon\n16 /etc/motd\n24 /etc/passwd\n"));
    let fs = Image::open(&disk).partition(2).read_only().mount().expect("mounted");
    assert_eq!(fs.read_to_string("/etc/motd").expect("read"), "edited by embed\n");
    assert!(fs.metadata("/opt/app/data").expect("made").is_dir());
    drop(fs);
    place.check(&disk);
    let (status, said) = place.run(&[&program, &place.text("none.img")]);
    assert!(status == Some(1) && said.contains("none.img: "), "{said}");
}

#[test]
fn functions_and_their_misuse_answer_as_the_header_says() {
    let place = Place::new();
    let (disk, program) = (place.disk(), place.compile("tests/t.c", "t", &[]));
    let (status, said) = place.run(&[&program, &disk, &place.text(".")]);
    assert_eq!((status, said.as_str()), (Some(0), "0 failures\n"));
    place.check(&disk);
}

#[test]
fn valgrind_finds_no_wrong_access() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: no valgrind");
        return;
    }
    let place = Place::new();
    let (disk, program) = (place.disk(), place.compile("tests/t.c", "t", &[]));
    // Valgrind does not see what io_uring completes, so a program waits for it forever.
    let valgrind = ["env", "EXTANT_ENGINE=portable", "valgrind", "-q", "--error-exitcode=99", "--fair-sched=yes"];
    let folder = place.text(".");
    let (status, said) = place.run(&[&valgrind[..], &[&*program, &*disk, &*folder]].concat());
    assert!(status == Some(0) && said.contains("0 failures\n"), "{status:?}\n{said}");
}

#[test]
fn static_library_needs_no_shared_one() {
    let place = Place::new();
    fs::remove_file(place.path("usr/lib/libextant.so")).expect("removed");
    let private = place.flags(&["--static", "--libs-only-l"]);
    let private: Vec<&str> = private.iter().map(String::as_str).collect();
    let (disk, program) = (place.disk(), place.compile("examples/embed.c", "embed", &private));
    fs::remove_file(place.path("usr/lib/libextant.so.0")).expect("removed");
    let (status, said) = place.run(&[&program, &disk]);
    assert!(status == Some(0) && said.starts_with("root\n"), "{said}");
}

#[test]
fn header_is_one_of_cpp_and_names_what_the_library_exports() {
    let place = Place::new();
    let header = place.text("usr/include/extant.h");
    run_ok("c++", &["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++", &header]).expect("compiled");
    let text = fs::read_to_string(&header).expect("read");
    let mut declared: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '}']) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    declared.sort_unstable();
    let symbols = run_ok("nm", &["-D", "--defined-only", &place.text("usr/lib/libextant.so")]).expect("symbols");
    let mut exported: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    exported.sort_unstable();
    assert!(declared.len() > 40 && declared == exported, "{declared:?}\n{exported:?}");
    let dynamic = run_ok("readelf", &["-d", &place.text("usr/lib/libextant.so")]).expect("read");
    assert!(dynamic.contains("[libextant.so.0]"), "{dynamic}");
}

#[test]
fn installation_is_undone() {
    let place = Place::new();
    let script = format!("{}/scripts/install-lib.sh", source("../.."));
    run_ok(&script, &["--remove", "", &place.text("usr"), &place.text("usr/lib")]).expect("removed");
    let left = run_ok("find", &[&place.text("usr"), "!", "-type", "d"]).expect("listed");
    assert_eq!(left.trim(), "");
}
