//! Manual pages, help and completions, which come from the command line's definition and the table of mount options.

use std::process::{Command, Stdio};

use crate::common::{Dir, extant, extant_path, run, tool};

/// Whether a program is installed.
fn has(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    there.is_ok_and(|status| status.success())
}

/// A page rendered for a terminal of 80 columns; without man(1), its source.
fn rendered(path: &str) -> String {
    let show = format!("MANWIDTH=80 LC_ALL=C man -l {path} | col -b -x");
    if has("man") && has("col") {
        tool("sh", &["-c", &show])
    } else {
        std::fs::read_to_string(path).expect("page").replace("\\-", "-").replace(".SH \"", "").replace('"', "")
    }
}

#[test]
fn manual_pages_have_their_sections_and_fit_into_80_columns() {
    let dir = Dir::new();
    let pages = dir.text("man");
    extant(&["man", &pages]).ok();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&pages).expect("folder") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("name").to_str().expect("UTF-8").to_owned();
        let source = std::fs::read_to_string(&path).expect("page");
        let title = source.lines().find(|line| line.starts_with(".TH ")).expect("a title");
        let (stem, section) = name.rsplit_once('.').expect("a section");
        assert!(title.starts_with(&format!(".TH {stem} {section} ")), "{name}: {title}");
        assert!(title.len() < 100 && !title.contains("debug"), "{name}: {title}");
        let page = rendered(path.to_str().expect("UTF-8"));
        let lines: Vec<&str> = page.lines().map(str::trim_end).collect();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"] {
            assert_eq!(lines.iter().filter(|line| **line == section).count(), 1, "{name}: {section}");
        }
        assert!(!lines.contains(&"EXTRA") && !lines.contains(&"VERSION"), "{name}");
        if has("man") {
            for line in &lines {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
        }
        names.push(name);
    }
    for name in ["extant.1", "extant-mount.1", "extant-lab-run.1", "extant-xattr-set.1", "mount.fuse.extant.8"] {
        assert!(names.iter().any(|n| n == name), "{name} of {names:?}");
    }
    let page = |name: &str| rendered(&format!("{pages}/{name}"));
    assert!(page("extant-lab-run.1").lines().next().expect("a head").starts_with("extant-lab-run(1)") || !has("man"));
    for name in ["extant-mount.1", "mount.fuse.extant.8"] {
        let page = page(name);
        let order = [
            "Mount options",
            "noatime",
            "grpid, bsdgroups",
            "MOUNT OPTIONS FOR MEASUREMENTS",
            "mb_policy=NAME",
            "MOUNT OPTIONS WITHOUT EFFECT",
            "orlov",
            "MOUNT OPTIONS THAT ARE REFUSED",
            "usrjquota",
            "EXAMPLES",
            "EXIT STATUS",
            "DIAGNOSTICS",
            "FILES",
            "ENVIRONMENT",
            "SEE ALSO",
        ];
        let mut from = page.find("OPTIONS").expect("options");
        for what in order {
            let at = page[from..].find(what).unwrap_or_else(|| panic!("{name}: {what} is not in its section"));
            from += at;
        }
        for what in ["/dev/log", "journalctl -t extant", "MINOR.log", "/run/extant", "XDG_RUNTIME_DIR"] {
            assert!(page.contains(what), "{name}: {what}");
        }
    }
}

#[test]
fn help_of_mount_fits_into_80_columns() {
    let help = Command::new(extant_path()).args(["help", "mount"]).env("COLUMNS", "80").output().expect("run");
    let help = String::from_utf8(help.stdout).expect("UTF-8");
    for line in help.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let admin = help.find("grpid").expect("an administrator's");
    let lab = help.find("mb_policy").expect("a researcher's");
    assert!(admin < help.find("Mount options for measurements").expect("a heading") && admin < lab);
    assert!(!extant(&["mount", "-h"]).ok().contains("grpid"), "the short help is short");
}

/// Bash's completions of a line; readline also splits it at "=" and ":".
fn bash_completes(script: &str, line: &str) -> Vec<String> {
    let program = format!(
        "source {script}; COMP_LINE=$1 COMP_POINT=${{#1}}; read -ra COMP_WORDS <<< \"$(sed 's/[=:]/ & /g' <<< \"$1\")\"
         [[ $1 == *[\\ =:] ]] && COMP_WORDS+=(''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
         _extant_values extant \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    tool("bash", &["-c", &program, "bash", line]).lines().map(str::to_owned).collect()
}

#[test]
fn completions_know_the_words_of_o_and_those_of_the_lab() {
    let dir = Dir::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = dir.text(shell);
        std::fs::write(&script, extant(&["completions", shell]).ok()).expect("written");
        for word in ["noatime", "grpid", "mb_policy", "goal-first", "small-files", "es-shrink", "engine:"] {
            let text = std::fs::read_to_string(&script).expect("script");
            assert!(text.contains(word), "{shell}: {word}");
        }
        if has(shell) {
            tool(shell, &["-n", &script]);
        }
    }
    let script = dir.text("bash");
    for (line, first) in [
        ("extant mount -o noat", "noatime"),
        ("extant mount -o ro,noat", "ro,noatime"),
        ("extant mount disk.img --options noatime,data=o", "ordered"),
        ("extant mkfs -t ext", "ext2"),
        ("extant mkfs -q -O extent,^has_j", "extent,^has_journal"),
        ("extant tune disk.img -O project,quo", "project,quota"),
        ("extant lab run sma", "small-files"),
        ("extant lab run small-files -t en", "engine:"),
        ("extant lab run small-files --policy mb_policy=goal", "goal-first"),
        ("extant lab model es-sh", "es-shrink"),
        ("extant unmo", "unmount"),
    ] {
        let answers = bash_completes(&script, line);
        assert_eq!(answers.first().map(String::as_str), Some(first), "{line}: {answers:?}");
    }
    if has("fish") {
        let answer =
            run("fish", &["-c", &format!("source {}; complete -C 'extant mount -o ro,noat'", dir.text("fish"))]);
        assert!(answer.ok().starts_with("ro,noatime\t"), "fish");
        let answer =
            run("fish", &["-c", &format!("source {}; complete -C 'extant mkfs -O quota,pro'", dir.text("fish"))]);
        assert!(answer.ok().starts_with("quota,project"), "fish");
    }
}
