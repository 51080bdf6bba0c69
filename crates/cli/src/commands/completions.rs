//! `extant completions`: a shell's completion script for `extant`.
//!
//! `clap_complete` makes the script for the switches. This module adds words that it does not know: the words of
//! `-o` and `-O`, separated by commas, and the workloads, models, targets and policies of `extant lab`.
//!
//! # Locking
//! None.

use std::fmt::Write as _;
use std::io::Write as _;

use clap::CommandFactory;
use clap_complete::Shell;
use extant_lab::target::{self, Kind};
use extant_lab::{model, workload};

use crate::args::{Cli, CompletionsArgs};
use crate::failure::Result;
use crate::mount_options::help;

pub fn run(args: &CompletionsArgs) -> Result<()> {
    // Generated into memory, because the generator panics if its output cannot be written.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "extant", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let script = match args.shell {
        Shell::Bash => script + &bash(),
        Shell::Fish => script + &fish(),
        Shell::Zsh => zsh(&script),
        _ => script,
    };
    std::io::stdout().write_all(script.as_bytes())?;
    Ok(())
}

fn workloads() -> String {
    workload::all().iter().map(|w| w.name()).collect::<Vec<_>>().join(" ")
}

fn models() -> String {
    model::all().iter().map(|m| m.name()).collect::<Vec<_>>().join(" ")
}

/// Each target ends where a path follows.
fn targets() -> String {
    Kind::ALL.iter().map(|kind| format!("{}:", kind.name())).collect::<Vec<_>>().join(" ")
}

/// The values of `--policy`, such as `mb_policy=vanilla`.
fn policies() -> Vec<String> {
    let names =
        |table: extant_base::policy::Table| table.rows.iter().map(move |row| format!("{}={}", table.option, row.name));
    target::policies().flat_map(names).collect()
}

/// The types of `mkfs -t`.
const TYPES: &str = "ext2 ext3 ext4";

/// Features as `-O` takes them, to add and to leave out.
fn features() -> String {
    let names = extant_build::options::makeable();
    let out: Vec<String> = names.iter().map(|name| format!("^{name}")).collect();
    format!("{} {}", names.join(" "), out.join(" "))
}

/// A function that runs first, and leaves other words to the generated one. Readline splits a word at "=" and ":", so
/// this takes the word from the line, and of an answer returns only the part that readline replaces.
fn bash() -> String {
    let options: Vec<String> = help::completions().into_iter().map(|(word, _)| word).collect();
    format!(
        r#"
_extant_values() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" word="" before="" verb=""
    local -a words
    read -ra words <<< "$line"
    if [[ $line == *[[:space:]] ]]; then
        before="${{words[-1]}}"
    else
        word="${{words[-1]}}" before="${{words[-2]}}"
    fi
    verb="${{words[1]}} ${{words[2]}}"
    local known="" list=""
    case "$verb" in
    mount\ *)
        case "$before" in
        -o|--options)
            list="${{word%"${{word##*,}}"}}"
            known="{options}" ;;
        esac ;;
    mkfs\ *|tune\ *)
        case "$verb $before" in
        mkfs\ *\ -t) known="{TYPES}" ;;
        *\ -O)
            list="${{word%"${{word##*,}}"}}"
            known="{features}" ;;
        esac ;;
    lab\ run|lab\ model)
        case "$before" in
        -t|--target) known="{targets}" ;;
        -p|--policy) known="{policies}" ;;
        run) [[ $word == -* ]] || known="{workloads}" ;;
        model) [[ $word == -* ]] || known="{models}" ;;
        esac ;;
    lab\ matrix|lab\ age)
        case "$before" in
        -w|--workload) known="{workloads}" ;;
        esac ;;
    esac
    local found
    found=$(compgen -W "$known" -- "${{word#"$list"}}")
    if [[ -z $found ]]; then
        _extant "$@"
        return
    fi
    local breaks="" cut=""
    [[ $COMP_WORDBREAKS == *=* ]] && breaks+="="
    [[ $COMP_WORDBREAKS == *:* ]] && breaks+=":"
    [[ -n $breaks ]] && cut="${{word%"${{word##*[$breaks]}}"}}"
    COMPREPLY=()
    local one
    for one in $found; do
        one="$list$one"
        COMPREPLY+=("${{one#"$cut"}}")
    done
    compopt -o nospace 2>/dev/null
}}
complete -F _extant_values -o bashdefault -o default extant
"#,
        options = options.join(" "),
        features = features(),
        targets = targets(),
        policies = policies().join(" "),
        workloads = workloads(),
        models = models(),
    )
}

fn fish() -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let mut out = String::from("\nfunction __extant_mount_options\n");
    for (word, text) in help::completions() {
        let _ = writeln!(out, "    printf '%s\\t%s\\n' {} {}", quoted(&word), quoted(text));
    }
    let _ = write!(
        out,
        r#"end
complete -c extant -n "__fish_extant_using_subcommand mkfs" -s t -x -a '{TYPES}'
function __extant_features
    printf '%s\n' {features}
end
for verb in mkfs tune
    complete -c extant -n "__fish_extant_using_subcommand $verb" -s O -x -a '(__fish_complete_list , __extant_features)'
end
complete -c extant -n "__fish_extant_using_subcommand mount" -s o -l options -x -a '(__fish_complete_list , __extant_mount_options)'
set -l run "__fish_extant_using_subcommand lab; and __fish_seen_subcommand_from run"
complete -c extant -n $run -f -a '{workloads}'
complete -c extant -n $run -s t -l target -x -a '{targets}'
complete -c extant -n $run -s p -l policy -x -a '{policies}'
complete -c extant -n "__fish_extant_using_subcommand lab; and __fish_seen_subcommand_from matrix" -s w -l workload -x -a '{workloads}'
complete -c extant -n "__fish_extant_using_subcommand lab; and __fish_seen_subcommand_from model" -f -a '{models}'
"#,
        features = features(),
        workloads = workloads(),
        models = models(),
        targets = targets(),
        policies = policies().join(" "),
    );
    out
}

/// The generated script, with other functions where it accepts any word.
fn zsh(script: &str) -> String {
    let quoted = |text: &str| text.replace('\'', "'\\''").replace('[', "\\[").replace(']', "\\]").replace(':', "\\:");
    let mut out = String::new();
    for line in script.lines() {
        let replaced = |from: &str, to: &str| line.replace(from, to);
        let line = match line {
            _ if line.contains(":OPTIONS:_default") => replaced(":OPTIONS:_default", ":OPTIONS:_extant_mount_options"),
            _ if line.contains(":TYPE:_default") => replaced(":TYPE:_default", &format!(":TYPE:({TYPES})")),
            _ if line.contains(":FEATURES:_default") => replaced(":FEATURES:_default", ":FEATURES:_extant_features"),
            _ if line.contains(":[^]FEATURE,…:_default") => {
                replaced(":[^]FEATURE,…:_default", ":FEATURES:_extant_features")
            }
            _ if line.contains(":TARGET:_default") => replaced(":TARGET:_default", ":TARGET:_extant_targets"),
            _ if line.contains(":NAME=A,B:_default") => replaced(":NAME=A,B:_default", ":NAME=A,B:_extant_policies"),
            _ if line.starts_with("'::workload -- ") => replaced(":_default'", &format!(":({})'", workloads())),
            _ if line.starts_with("':model -- ") => replaced(":_default'", &format!(":({})'", models())),
            _ => line.to_owned(),
        };
        if line.starts_with("if [ \"$funcstack[1]\"") {
            out += "_extant_mount_options() {\n    _values -s , -S = 'mount option'";
            for (word, value, choices, text) in help::words() {
                let value = match (value.is_empty(), choices.is_empty()) {
                    (true, _) => String::new(),
                    (false, true) => format!(":{}: ", value.trim_matches(['[', '=', ']'])),
                    (false, false) => format!(":value:({})", choices.join(" ")),
                };
                let _ = write!(out, " \\\n        '{word}[{}]{value}'", quoted(text));
            }
            out += "\n}\n";
            let _ = write!(
                out,
                "_extant_features() {{\n    _values -s , feature {}\n}}\n\
                 _extant_targets() {{\n    if compset -P '*:'; then _files; else compadd -S '' -- {}; fi\n}}\n\
                 _extant_policies() {{\n    compadd -- {}\n}}\n\n",
                features(),
                targets(),
                policies().join(" ")
            );
        }
        out += &line;
        out.push('\n');
    }
    out
}
