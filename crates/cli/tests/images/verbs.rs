//! Changing images without a mount: each command compared with the host's of the same name, on a mount of the kernel.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::common::{
    CommandResult, Dir, debugfs, extant, extant_path, fsck_clean, loop_mounts_work, patch, run, tool, umount,
    whole_disk,
};

/// Commands that Extant and the host share; `@` stands for the root of the file system.
const COMMON: &[&str] = &[
    "mkdir @/a @/b",
    "mkdir -p -m 750 @/p/q/r @/a",
    "mkdir @/sticky -m 1777",
    "mkdir @/gone/x",
    "mkdir @/a",
    "touch -d @1000000000 @/a/f @/b/g",
    "touch -c @/none",
    "touch -m -t 202402291234.56 @/a/f",
    "touch -a -d 2001-02-03T04:05:06Z @/a/f",
    "ln @/a/f @/b/hard",
    "ln @/a/f @/b",
    "ln @/a @/b/dir",
    "ln -s ../a/f @/b/soft",
    "ln -s /nowhere @/dangling",
    "ln -s a @/to-a",
    "ln -s x @/dangling",
    "ln -sf y @/dangling",
    "ln -sfn b @/to-a",
    "ln -f @/b/g @/b/hard",
    "mknod -m 640 @/null c 1 3",
    "mknod @/disk b 259 70000",
    "mknod @/pipe p",
    "chmod 4751 @/a/f",
    "chmod u=rwx,g=rx,o= @/b",
    "chmod -R g+w,o-rX @/p",
    "chmod a+x @/b/soft @/missing",
    "chown 1234:70000 @/a/f",
    "chown -R :77 @/p",
    "chown -h 5:6 @/b/soft",
    "chown root @/b/g",
    "mv @/b/g @/b/renamed",
    "mv @/b/renamed @/b/hard @/p/q",
    "mv -n @/a/f @/p/q/renamed",
    "mv @/p @/p/q/inside",
    "mv -T @/sticky @/p/q/r",
    "mv @/nothing @/b",
    "mkdir -p @/t/1/2/3 @/t/4",
    "touch @/t/1/x @/t/1/2/y @/t/4/z",
    "rm @/t/1",
    "rm @/missing",
    "rm -f @/missing",
    "rm -d @/t/1/2/3",
    "rm -d @/t/1",
    "rm -r @/t/1",
    "rm -rf @/t/4 @/missing @/to-a",
    "touch @/h1",
    "ln @/h1 @/h2",
    "mv -n @/h1 @/h2",
    "mv @/h1 @/h2",
    "mv @/h2 @/h2",
    "ln @/h2 @/a/h2",
    "mv @/h2 @/a",
    "rm @/h2",
    "touch @/n/",
    "ln -s deep/made @/led",
    "touch @/led",
    "mkdir @/deep",
    "ln -s ../led @/deep/twice",
    "touch @/deep/twice",
    "mknod @/n/ p",
    "ln @/a/h2 @/n/",
    "mv @/a/h2 @/n/",
    "mv @/a/h2/ @/n",
    "mkdir @/n2/",
    "mv @/n2 @/n3/",
    "ln -s n3 @/to-n3",
    "rm -r @/to-n3/",
    "rm -rf @/to-n3/",
    "mkdir -m 9z @/bad",
    "mknod -m 9z @/bad p",
];

/// find(1)'s listing of a tree, without times that no command set.
fn listing(top: &str) -> String {
    let find = "find . -name lost+found -prune -o -printf '%p %y %m %n %U %G %s %l\\n'";
    tool("sh", &["-c", &format!("cd {top} && {{ {find}; stat -c '%n %X %Y' a/f; }} | LC_ALL=C sort")])
}

#[test]
fn every_verb_acts_like_the_hosts_command() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return;
    }
    for options in [&["-b", "1024"][..], &["-O", "^has_journal,^extents,^metadata_csum,^64bit", "-I", "128"]] {
        let dir = Dir::new();
        let (ours, theirs) = (dir.empty_image("ours.img", options), dir.empty_image("theirs.img", options));
        let (mnt, look) = (dir.text("mnt"), dir.text("look"));
        std::fs::create_dir(&mnt).expect("directory");
        std::fs::create_dir(&look).expect("directory");
        tool("mount", &["-o", "loop", &theirs, &mnt]);
        let tried = std::panic::catch_unwind(|| {
            for line in COMMON {
                let args = |top: &str| -> Vec<String> { line.split(' ').map(|w| place(w, top)).collect() };
                let (host, own) = (args(&mnt), args(&format!("{ours}:")));
                let refs: Vec<&str> = host.iter().map(String::as_str).collect();
                let host = run(refs[0], &refs[1..]);
                let refs: Vec<&str> = own.iter().map(String::as_str).collect();
                let own = extant(&refs);
                assert_eq!(own.code == Some(0), host.code == Some(0), "{line}: {own:?} {host:?}");
                assert!(own.code == Some(0) || !own.err.is_empty(), "{line}: {own:?}");
                fsck_clean(&ours);
            }
            tool("mount", &["-o", "loop,ro", &ours, &look]);
            let (ours, theirs) = (listing(&look), listing(&mnt));
            umount(&[&look]);
            assert_eq!(ours, theirs);
        });
        umount(&[&mnt]);
        tried.unwrap();
    }
}

/// `@/x` in `top`, except for the time `@1000000000`.
fn place(word: &str, top: &str) -> String {
    if word.starts_with("@/") { format!("{top}{}", &word[1..]) } else { word.to_owned() }
}

#[test]
fn searching_and_counting_agree_with_the_hosts() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return;
    }
    let dir = Dir::new();
    let (image, mnt) = (dir.image("ext4", &[]), dir.text("mnt"));
    std::fs::create_dir(&mnt).expect("directory");
    extant(&["ln", &format!("{image}:/big"), &format!("{image}:/etc/big")]).ok();
    // The kernel's mount uses a copy, because a mounted image is refused.
    let copy = dir.text("copy.img");
    tool("cp", &["--sparse=always", &image, &copy]);
    tool("mount", &["-o", "loop,ro", &copy, &mnt]);
    let tried = std::panic::catch_unwind(|| {
        let sorted = |out: Vec<u8>| {
            let mut paths: Vec<Vec<u8>> = out.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
            paths.sort();
            paths
        };
        for tests in [
            "",
            "-name *a*",
            "-iname BIG -type f",
            "-type l,d",
            "-size +1M",
            "-size -2 -type f",
            "-size 26c",
            "-maxdepth 1",
            "-mindepth 2 ! -name er",
            "-links +1 -type f",
            "-perm -4000",
            "-perm /022",
            "-perm 4751",
            "-empty",
            "-path */deep/*",
            "-uid 0 -not -type d",
            "-mtime +1000",
        ] {
            let words: Vec<&str> = tests.split(' ').filter(|w| !w.is_empty()).collect();
            let own = extant(&[&["find", &image], &words[..], &["-print0"]].concat());
            assert_eq!((own.code, own.err.as_str()), (Some(0), ""), "{tests}");
            let host = run("find", &[&[&mnt[..]], &words[..], &["-print0"]].concat());
            // The host's paths begin with the mount point, Extant's with the root.
            let host = String::from_utf8_lossy(&host.out).replace(&mnt, "").replace("\0\0", "\0/\0");
            let host = if host.starts_with('\0') { format!("/{host}") } else { host };
            let own = String::from_utf8_lossy(&own.out).into_owned();
            assert_eq!(sorted(own.into_bytes()), sorted(host.into_bytes()), "{tests}");
        }
        for options in [&["-s"][..], &[], &["-a"], &["-sh"]] {
            let own = extant(&[&["du"], options, &[&format!("{image}:/etc")]].concat()).ok();
            let host =
                run("sh", &["-c", &format!("cd {mnt} && du {} etc | sed 's,\\tetc,\\t/etc,'", options.concat())]);
            let sort = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.sort();
                lines
            };
            assert_eq!(sort(&own), sort(&String::from_utf8_lossy(&host.out)), "{options:?}");
        }
        for options in ["", "-i", "-h"] {
            let words: Vec<&str> = options.split(' ').filter(|w| !w.is_empty()).collect();
            let own = extant(&[&["df"], &words[..], &[&image]].concat()).ok();
            let host = tool("df", &[&words[..], &[&mnt]].concat());
            let numbers = |text: &str| -> Vec<String> {
                text.lines().nth(1).expect("a row").split_whitespace().skip(1).take(4).map(str::to_owned).collect()
            };
            assert_eq!(numbers(&own), numbers(&host), "{own}{host}");
        }
    });
    umount(&[&mnt]);
    tried.unwrap();
}

#[test]
fn lists_for_programs_are_json_or_nul_terminated() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let json = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&extant(args).ok()).expect("JSON") };
    let at = format!("{image}:/");
    for args in [
        &["ls", "--json", &image][..],
        &["ls", "-R", "--json", &image],
        &["tree", "--json", &image],
        &["find", "--json", &image],
        &["find", &image, "--json"],
        &["du", "--json", &at],
        &["df", "--json", &image],
        &["ls", "--json", &image, "/etc/deep/er/file"],
    ] {
        assert!(!json(args).as_array().expect("a list").is_empty(), "{args:?}");
    }
    assert_eq!(json(&["find", "--json", &image, "-name", "nothing"]), serde_json::json!([]));
    let stat = json(&["stat", "--json", &image, "/etc/passwd"]);
    assert_eq!(
        (&stat["mode"], &stat["size"], &stat["mtime"]),
        (&"4751".into(), &26.into(), &"1000000000.000000000".into())
    );
    let odd = json(&["find", "--json", &image, "-name", "odd*"]);
    assert_eq!(odd[0]["path_hex"], "2f6f6464ff0a6e616d65");
    let nul = |args: &[&str]| extant(args).out.split(|b| *b == 0).map(<[u8]>::to_vec).collect::<Vec<_>>();
    assert!(nul(&["ls", "-0", &image]).contains(&b"odd\xff\nname".to_vec()));
    for args in
        [&["ls", "-R", "-0", &image][..], &["tree", "-0", &image], &["find", "-0", &image], &["du", "-a", "-0", &at]]
    {
        let paths = nul(args);
        assert!(paths.iter().any(|p| p.ends_with(b"/odd\xff\nname") || p.ends_with(b"\t/odd\xff\nname")), "{args:?}");
        assert!(paths.iter().any(|p| p.ends_with(b"/etc/deep/er/file")), "{args:?}");
    }
    let long = extant(&["ls", "-lh", &image]).out;
    assert!(String::from_utf8_lossy(&long).contains(" 2.7M "), "{}", String::from_utf8_lossy(&long));
}

#[test]
fn attributes_are_set_listed_and_removed() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    extant(&["xattr", "set", "user.colour", "blue", &at("/big"), &at("/empty")]).ok();
    extant(&["xattr", "set", "user.raw", "0x00ff10", &at("/big")]).ok();
    assert_eq!(extant(&["xattr", "list", &at("/big")]).ok(), "user.colour\nuser.raw\n");
    assert_eq!(extant(&["xattr", "get", "user.raw", &at("/big")]).out, b"\0\xff\x10");
    assert!(debugfs(&image, "ea_get /big user.colour").contains("blue"));
    extant(&["xattr", "remove", "user.raw", &at("/big")]).ok();
    extant(&["xattr", "remove", "user.raw", &at("/big")]).fails(8, &["disk.img: /big: no such attribute"]);
    let json: serde_json::Value =
        serde_json::from_str(&extant(&["xattr", "list", "--json", &at("/big")]).ok()).expect("JSON");
    assert_eq!(json, serde_json::json!([{ "path": "/big", "name": "user.colour", "value": "blue" }]));
    extant(&["xattr", "set", "user.raw", "0x0", &at("/big")]).fails(1, &["hexadecimal digits in pairs"]);
    fsck_clean(&image);
}

#[test]
fn mistakes_of_verbs_get_a_clear_error() {
    let dir = Dir::new();
    let (image, other) = (dir.image("ext4", &[]), dir.empty_image("other.img", &[]));
    let at = |path: &str| format!("{image}:{path}");
    extant(&["rm", "/etc"]).fails(1, &["'/etc' is not a path in an image: write IMAGE:PATH"]);
    extant(&["rm", &at("/etc")]).fails(8, &["disk.img: /etc: is a directory (remove it with -r)"]);
    extant(&["rm", "-rf", &at("/")]).fails(8, &["/: the root cannot be moved or removed"]);
    extant(&["chmod", "u+q", &at("/etc")]).fails(1, &["'u+q' is not a mode"]);
    extant(&["chown", "no-such-user-here", &at("/etc")]).fails(1, &["this host knows no such user"]);
    extant(&["mv", &at("/big"), &format!("{other}:/big")]).fails(8, &["/big: cannot move to another image", "cp -a"]);
    extant(&["ln", &at("/big"), &format!("{other}:/big")]).fails(8, &["cannot lead to another image"]);
    extant(&["mknod", &at("/x"), "c", "1"]).fails(1, &["a device takes MAJOR and MINOR"]);
    // Numbers beyond the format's range would be changed.
    extant(&["mknod", &at("/x"), "c", "4096", "1"]).fails(1, &["4096 is not in 0..=4095"]);
    extant(&["mknod", &at("/x"), "c", "1", "1048576"]).fails(1, &["1048576 is not in 0..=1048575"]);
    extant(&["mknod", &at("/edge"), "c", "4095", "1048575"]).ok();
    assert!(debugfs(&image, "stat /edge").contains("4095:1048575"), "{}", debugfs(&image, "stat /edge"));
    extant(&["touch", "-d", "someday", &at("/x")]).fails(1, &["'someday' is not a time"]);
    extant(&["mkdir", &at("/no/such/dir")]).fails(8, &["/no/such/dir: no such file or directory: /no\n"]);
    extant(&["find", &image, "-exec", "x"]).fails(1, &["'-exec' is not a test of find; the tests are: -name"]);
    // A failure does not prevent the others.
    extant(&["rm", &at("/none"), &at("/empty")]).fails(8, &["/none: no such file"]);
    extant(&["stat", &image, "/empty"]).fails(8, &["/empty: no such file"]);
    fsck_clean(&image);
}

fn script(image: &str, options: &[&str], lines: &str) -> CommandResult {
    let mut child = Command::new(extant_path())
        .arg("script")
        .args(options)
        .arg(image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    child.stdin.take().expect("pipe").write_all(lines.as_bytes()).expect("written");
    let done = child.wait_with_output().expect("ended");
    CommandResult {
        code: done.status.code(),
        out: done.stdout,
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

/// As with getopt(3).
#[test]
fn values_may_begin_with_a_hyphen() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    extant(&["touch", "-d", "-1day", &at("/big")]).ok();
    let age = "import sys, time; sys.exit(not 86000 < time.time() - float(sys.argv[1]) < 87000)";
    let json = extant(&["stat", "--json", &at("/big")]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    run("python3", &["-c", age, json["mtime"].as_str().expect("seconds")]).ok();
    extant(&["xattr", "set", "user.n", "-5", &at("/big")]).ok();
    assert_eq!(extant(&["xattr", "get", "user.n", &at("/big")]).out, b"-5");
    script(&image, &[], "xattr set user.n -x /big\n").ok();
    assert_eq!(extant(&["xattr", "get", "user.n", &at("/big")]).out, b"-x");
    assert_eq!(extant(&["find", &image, "-name", "-*"]).ok(), "");
}

#[test]
fn a_verb_that_does_not_exist_never_leads_to_one_that_deletes() {
    let words = ["format", "rmdir", "rmm", "resize", "tune2fs", "label", "lsdel", "mkf", "tar", "e2fsck", "mvv"];
    for word in words {
        let said = extant(&[word, "x"]).fails(1, &[word]);
        assert!(!said.contains("similar") || !(said.contains("'rm'") || said.contains("'mkfs'")), "{said}");
        assert!(said.lines().any(|line| !line.is_empty()) && !said.contains("exist: \n"), "{said}");
    }
    extant(&["format", "x"]).fails(1, &["'extant mkfs' makes a file system"]);
}

#[test]
fn a_script_runs_its_lines_and_stops_at_the_first_error() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (src, out) = (dir.text("src"), dir.text("out"));
    let lines = format!(
        "# a comment\n\nmkdir -p /srv/www 'with space'\nput -r {src}/etc/. /srv/www\nchown -R 33:34 /srv/www\n\
         chmod 600 /srv/www/passwd  # and another\nln -s \"with space\" /link2\nmv /big /large\nrm -r /etc\n\
         xattr set user.x y /large\nget -r /srv/www {out}\n"
    );
    assert_eq!(script(&image, &[], &lines).ok(), "");
    fsck_clean(&image);
    assert!(debugfs(&image, "stat /srv/www/deep/er/file").contains("User:    33   Group:    34"));
    assert!(debugfs(&image, "stat /srv/www/passwd").contains("Mode:  0600"));
    assert_eq!(std::fs::read(dir.path("out/deep/er/file")).expect("file"), b"deep\n");
    extant(&["stat", &image, "/etc"]).fails(8, &["/etc: no such file"]);
    // An error names its line, and the number of commands before it.
    let said = script(&image, &[], "mkdir /one\n\nmkdir /no/such/dir\nmkdir /two\n")
        .fails(1, &["standard input: line 3: ", "/no/such/dir: no such file"]);
    assert!(said.contains("standard input: line 3: 1 command before it was done"), "{said}");
    extant(&["stat", &image, "/one"]).ok();
    extant(&["stat", &image, "/two"]).fails(8, &["/two: no such file"]);
    script(&image, &[], "frobnicate /x\n").fails(1, &["line 1: ", "frobnicate", "nothing was done before it"]);
    script(&image, &[], "mkdir 'x\n").fails(1, &["line 1: a quotation mark without its pair"]);
    script(&image, &[], "mkdir\n").fails(1, &["line 1: "]);
    script(&image, &[], "put - /x\n").fails(1, &["line 1: the standard input is the script's"]);
    let file = dir.text("changes");
    std::fs::write(&file, "mkdir /from-file\nrm /none\n").expect("file");
    extant(&["script", &image, &file]).fails(1, &["changes: line 2: ", "/none: no such file"]);
    extant(&["stat", &image, "/from-file"]).ok();
    fsck_clean(&image);
}

/// Including line breaks, which no other quoting can express in one line.
#[test]
fn a_script_names_files_with_any_bytes() {
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let host = dir.text("on the\nhost");
    std::fs::write(&host, "text").expect("file");
    let lines = format!(
        "mkdir $'/a\\nb\\'\\e[2J\\xff'\nput '{}'$'on the\\nhost' $'/a\\nb\\'\\033[2J\\377/\\t'\n",
        dir.text("")
    );
    script(&image, &[], &lines).ok();
    let found = extant(&["find", &image, "-type", "f", "-print0"]);
    assert_eq!(found.out, b"/a\nb'\x1b[2J\xff/\t\0");
    script(&image, &[], "mkdir $'/x\\q'\n").fails(1, &["line 1", "unknown escape"]);
    script(&image, &[], "mkdir $'/x\n").fails(1, &["line 1", "without its pair"]);
    fsck_clean(&image);
}

/// All lines or none, with every format of the journal.
#[test]
fn an_atomic_script_changes_all_or_nothing() {
    for options in [&["-b", "1024"][..], &["-O", "^64bit,^metadata_csum", "-b", "4096"]] {
        let dir = Dir::new();
        let image = dir.image("ext4", options);
        let before = std::fs::read(&image).expect("image");
        let fails = script(&image, &["--atomic"], "rm -r /etc /big\nmkdir /new\nrm /none\nmkdir /never\n");
        fails.fails(1, &["standard input: line 3: ", "/none: no such file", "line 3: nothing was changed"]);
        fsck_clean(&image);
        // Except for the superblock, which records a mount.
        let after = std::fs::read(&image).expect("image");
        let names = |image: &str| extant(&["find", image, "-print0"]).out;
        assert_eq!(before.len(), after.len());
        extant(&["cat", &image, "/etc/passwd"]).ok();
        let src = dir.text("src");
        let lines = format!("rm -r /etc\nput -r {src} /new\nchmod 700 /new\nln -s new /newer\nmv /big /large\n");
        script(&image, &["--atomic"], &lines).ok();
        fsck_clean(&image);
        let found = String::from_utf8_lossy(&names(&image)).into_owned();
        assert!(!found.contains("\0/etc\0") && found.contains("\0/new/etc/deep/er/file\0"), "{found}");
        let dump = dir.text("dump");
        for name in ["new/big", "large"] {
            debugfs(&image, &format!("dump /{name} {dump}"));
            assert!(std::fs::read(&dump).expect("file") == crate::common::big(), "{name}");
        }
        if loop_mounts_work() {
            let mnt = dir.text("mnt");
            std::fs::create_dir(&mnt).expect("directory");
            tool("mount", &["-o", "loop", &image, &mnt]);
            let same = run("cmp", &[&format!("{mnt}/new/big"), &format!("{mnt}/large")]);
            umount(&[&mnt]);
            same.ok();
        }
    }
    let dir = Dir::new();
    let plain = dir.image("ext2", &[]);
    script(&plain, &["--atomic"], "mkdir /new\n").fails(8, &["disk.img: --atomic needs an image with a journal"]);
    extant(&["stat", &plain, "/new"]).fails(8, &["/new: no such file"]);
    fsck_clean(&plain);
}

/// A signal ends a command between two files, with the shell's status for it; the image stays clean.
#[test]
fn signals_end_commands() {
    use rustix::process::{Pid, Signal, kill_process};
    let dir = Dir::new();
    let image = dir.empty_image("a.img", &[]);
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        // Restores the default, whatever the tests were started with.
        let mut child = Command::new("env")
            .arg("--default-signal=HUP")
            .arg(extant_path())
            .args(["cp", "-", &format!("{image}:/streamed")])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let mut pipe = child.stdin.take().expect("pipe");
        // The command is reading, so its handlers are installed.
        for _ in 0..40 {
            pipe.write_all(&[7; 4096]).expect("written");
        }
        kill_process(Pid::from_child(&child), signal).expect("signal");
        while pipe.write_all(&[7; 4096]).is_ok() {
            extant_base::clock::Clock::real().sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(child.wait().expect("ended").code(), Some(status));
        fsck_clean(&image);
    }
}

/// Under nohup(1) a hang-up of the terminal does not end the command.
#[test]
fn an_ignored_hang_up_stays_ignored() {
    use rustix::process::{Pid, Signal, kill_process};
    let dir = Dir::new();
    let image = dir.empty_image("a.img", &[]);
    let mut child = Command::new("env")
        .arg("--ignore-signal=HUP")
        .arg(extant_path())
        .args(["script", "-v", &image])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut pipe = child.stdin.take().expect("pipe");
    pipe.write_all(b"mkdir /before\n").expect("written");
    // The command has begun, so its handlers are installed.
    let mut said = [0];
    child.stderr.as_mut().expect("pipe").read_exact(&mut said).expect("said");
    kill_process(Pid::from_child(&child), Signal::HUP).expect("signal");
    pipe.write_all(b"mkdir /after\n").expect("written");
    drop(pipe);
    assert_eq!(child.wait().expect("ended").code(), Some(0));
    extant(&["stat", &image, "/after"]).ok();
    fsck_clean(&image);
}

/// Also while the command waits for input, or for a reader of its output.
#[test]
fn signals_end_commands_that_wait() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::os::unix::process::ExitStatusExt;
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (get, fifo) = (dir.text("get"), dir.text("src/fifo"));
    std::fs::write(&get, "get /sparse -\n").expect("file");
    for args in [
        &["cp", "-", &format!("{image}:/streamed")][..],
        &["script", &image],
        &["cp", &format!("{image}:/sparse"), "-"],
        &["script", &image, &get],
        &["cp", &fifo, &format!("{image}:/from-fifo")],
    ] {
        let mut child = Command::new(extant_path())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        // Its handlers are installed, and it sleeps.
        crate::common::wait_until("a command that waits", || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().trim();
            let caught = u64::from_str_radix(field("SigCgt:"), 16).unwrap_or(0);
            caught & 1 << 14 != 0 && field("State:").starts_with('S')
        });
        kill_process(Pid::from_child(&child), Signal::TERM).expect("signal");
        let clock = extant_base::clock::Clock::real();
        let ended = loop {
            match child.try_wait().expect("waited") {
                Some(status) => break Some(status),
                None if clock.now_ns() > 10_000_000_000 => break None,
                None => clock.sleep(std::time::Duration::from_millis(10)),
            }
        };
        if ended.is_none() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
        // A shell reports 143 for both.
        let code = ended.and_then(|status| status.code().or(status.signal().map(|signal| 128 + signal)));
        assert_eq!(code, Some(143), "{args:?}");
        fsck_clean(&image);
    }
}

/// An error while printing does not change the result.
#[test]
fn output_errors_do_not_panic() {
    let dir = Dir::new();
    let image = dir.empty_image("a.img", &[]);
    let (lines, mnt) = (dir.text("lines"), dir.text("mnt"));
    std::fs::write(&lines, "mkdir /new\n").expect("file");
    std::fs::create_dir(&mnt).expect("directory");
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").expect("opened"));
    let ran = |args: &[&str]| {
        let status = Command::new(extant_path()).args(args).stdout(full()).stderr(full()).status().expect("started");
        status.code()
    };
    assert_eq!(ran(&["script", "-v", &image, &lines]), Some(0));
    extant(&["stat", &image, "/new"]).ok();
    if !extant_testkit::mount::fuse_works() {
        eprintln!("skipped: needs FUSE");
        return;
    }
    let mounted = ran(&["mount", "-v", &image, &mnt]);
    let there = extant_testkit::mount::is_mount_point(std::path::Path::new(&mnt));
    let unmounted = ran(&["unmount", "-v", &mnt]);
    assert_eq!((mounted, there, unmounted), (Some(0), true, Some(0)));
    fsck_clean(&image);
}

/// The only partition, with its number and without, is one image.
#[test]
fn one_partition_by_two_names() {
    let dir = Dir::new();
    let (image, disk) = (dir.image("ext4", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    // Partition 5 loses its superblock.
    patch(&disk, 512 * (4096 + (64 << 20) / 512 + 2048) + 1024 + 56, &[0, 0]);
    let second = format!("{disk}@2");
    extant(&["mv", &format!("{disk}:/empty"), &format!("{second}:/moved")]).ok();
    extant(&["cp", &format!("{second}:/moved"), &format!("{disk}:/copied")]).ok();
    let names = extant(&["ls", &disk]).out;
    for name in ["moved", "copied"] {
        assert!(String::from_utf8_lossy(&names).lines().any(|line| line == name), "{name}");
    }
}

#[test]
fn a_list_for_programs_is_whole_even_if_an_image_is_missing() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let none = dir.text("none.img");
    for args in [
        &["find", "--json", &none, &image, "-name", "big"][..],
        &["du", "--json", &none, &format!("{image}:/big")],
        &["xattr", "list", "--json", &format!("{none}:/x"), &format!("{image}:/big")],
    ] {
        let ran = extant(args);
        assert_eq!(ran.code, Some(8), "{ran:?}");
        assert!(ran.err.contains("none.img: No such file"), "{}", ran.err);
        let list: serde_json::Value = serde_json::from_slice(&ran.out).expect("JSON");
        assert_eq!(list.as_array().expect("a list").len(), usize::from(args[0] != "xattr"), "{list}");
    }
}
