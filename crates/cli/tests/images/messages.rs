//! Paths of the host in messages: a name from another user must not control the terminal, or forge a line.

use std::collections::BTreeSet;

use extant_testkit::tests_of_cases;

use crate::common::{Dir, in_time};

/// Sets a terminal's title, begins a line, and clears the screen in two ways (ECMA-48: ESC [, CSI).
const NAME: &str = "a\u{1b}]0;title\u{7}\nextant: forged\u{1b}[2J\u{9b}2Jb";

/// Commands; P stands for the path.
const COMMANDS: &[&str] = &[
    "mount P P",
    "mount -f P P",
    "mount -v P P",
    "mount -o frobnicate=P IMAGE DIR",
    "mount -o remount,ro P",
    "mount -N P IMAGE DIR",
    "mount --stats P P P",
    "unmount P",
    "unmount -N P P",
    "freeze P",
    "freeze P P",
    "thaw P",
    "info P",
    "info IMAGE P",
    "info --json P@7",
    "info P?offset=P",
    "info --sb P IMAGE",
    "ls P",
    "ls P@3 /",
    "ls -P",
    "ls --P",
    "ls --json=P IMAGE",
    "lab --P",
    "ls IMAGE P",
    "ls --rescue P",
    "cat P:/x",
    "cat IMAGE P",
    "stat P:/x",
    "tree P",
    "find P -type P",
    "find P",
    "find IMAGE P -name x",
    "find IMAGE -size P",
    "find IMAGE -newer P",
    "find IMAGE -user P",
    "du P",
    "df P",
    "cp P IMAGE:/",
    "cp -v P IMAGE:/",
    "cp IMAGE:/x P",
    "cp P P",
    "cp P:/x P",
    "cp --owner P P IMAGE:/",
    "cp -r P IMAGE:/new",
    "cp -r IMAGE:/lost+found P/a/b",
    "cp --seed P P IMAGE:/",
    "rm P:/x",
    "mkdir P:/x",
    "mkdir -v P:/v",
    "mv -v P:/v P:/w",
    "cp -rv P:/ DIR",
    "rm -rv P:/w",
    "mkfs -v P 8M",
    "fsck -fn P",
    "find P -block 1",
    "export P -o P/a",
    "ln P:/x P:/y",
    "ln -s P P:/y",
    "mv P:/x P:/y",
    "chmod P IMAGE:/",
    "chmod 644 P:/x",
    "chown P IMAGE:/",
    "chown 0 P:/x",
    "mknod P:/x p",
    "mknod IMAGE:/x P",
    "touch P:/x",
    "touch -d P IMAGE:/",
    "touch -r P IMAGE:/",
    "xattr list P:/x",
    "xattr set user.x P P:/x",
    "xattr frobnicate P",
    "script IMAGE P",
    "script P P",
    "script P",
    "P",
    "man P/a",
    "completions P",
    "lab P",
    "lab run P -t dir:DIR",
    "lab run small-files -t P",
    "lab run small-files -t dir:P -o P/a --rounds 1 --scale 0.01",
    "lab run small-files -t engine:P -o P/a --rounds 1 --scale 0.01",
    "lab run small-files -t engine:P -o P/a --plan",
    "lab run small-files -t mount:P,P --rounds 1 --scale 0.01 -o P/a",
    "lab run small-files -t mount:P,program=P --rounds 1 --scale 0.01 -o P/a",
    "lab run small-files -t dir:DIR --rounds 1 --scale 0.01 --shard P",
    "lab run small-files -t dir:DIR -p P=a,b",
    "lab run small-files -t dir:DIR --set P=1",
    "lab run replay --operations P -t dir:DIR --rounds 1 -o P/a",
    "lab rerun P",
    "lab merge P P -o P",
    "lab merge P -o P/a",
    "lab matrix engine:P -w fsync-append --rounds 1 --scale 0.01 -o P/a",
    "lab model group-search -p size-classes,vanilla --set groups=64 --set requests=20 --rounds 1 -o P/a",
    "lab model P",
    "lab compare P",
    "lab compare P P",
    "lab report P",
    "lab report P -o P",
    "lab report P/a -o P/b",
];

/// With every second kind of path.
fn prints_no_control_character(half: usize) {
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let place = dir.text("dir");
    std::fs::create_dir(&place).expect("directory");
    let made = |parent: &str| {
        let parent = dir.text(parent);
        std::fs::create_dir(&parent).expect("directory");
        format!("{parent}/{NAME}")
    };
    let (missing, empty, text, folder, whole) =
        (made("missing"), made("empty"), made("text"), made("folder"), made("image"));
    std::fs::write(&empty, "").expect("written");
    std::fs::write(&text, "frobnicate\n".repeat(1000)).expect("written");
    std::fs::create_dir(&folder).expect("directory");
    std::fs::copy(&image, &whole).expect("copied");
    // A path that is not a directory, and one below a file.
    let below = format!("{text}/{NAME}");
    let (mut forged, mut said) = (BTreeSet::new(), 0);
    for path in [&missing, &empty, &text, &folder, &whole, &below].into_iter().skip(half).step_by(2) {
        for command in COMMANDS {
            let words = command.split(' ').map(|word| match word {
                "IMAGE" => image.clone(),
                "DIR" => place.clone(),
                word => word.replace('P', path).replace("IMAGE", &image),
            });
            let words: Vec<String> = words.collect();
            let ran = in_time(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert_ne!(ran.code, Some(124), "{command}: took too long");
            let all = String::from_utf8_lossy(&ran.out) + ran.err.as_str();
            said += usize::from(!all.is_empty());
            if all.chars().any(|c| !matches!(c, '\n' | '\t') && c.is_control()) || all.contains("\nextant: forged") {
                forged.insert(format!("{command}: {all:?}"));
            }
        }
    }
    assert!(!extant_testkit::mount::is_mount_point(place.as_ref()), "a command has mounted the image");
    assert!(forged.is_empty(), "{} of {said}:\n{}", forged.len(), forged.into_iter().collect::<Vec<_>>().join("\n"));
    assert!(said > 3 * COMMANDS.len() / 2, "only {said} messages");
}

tests_of_cases!(
    no_control_character_of_a_host_path_reaches_the_terminal,
    prints_no_control_character,
    first_half_of_the_paths: 0,
    second_half_of_the_paths: 1,
);
