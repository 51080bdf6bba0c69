//! One word of `-o`, and the search for it.
//!
//! Main types: [`Word`], [`Fate`] (its effect), [`Audience`], [`Origin`].
//!
//! What it does not do: it has no list of the words ([`super::table`]).
//!
//! # Locking
//! None.

use super::MountConfig;
use super::table::WORDS;

/// The users that a word is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// A user who mounts an image in order to use it.
    Administrator,
    /// A user who measures, compares or debugs.
    Researcher,
}

/// The source of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// ext4(5), or the kernel's driver without its manual. These may occur in a superblock.
    Ext4,
    /// The options of mount(8) for all file systems.
    Mount,
    /// libfuse, fuse2fs, or the kernel's FUSE.
    Fuse,
    Extant,
}

/// The effect of a word.
#[derive(Clone, Copy)]
pub enum Fate {
    /// The engine applies it ([`extant_fs::MountOptions::set_word`] and [`extant_fs::MountOptions::set_own_word`]).
    Engines,
    /// It names a policy of the engine's ([`extant_fs::POLICIES`]).
    Policy,
    /// It has this effect. The value is "" if there is none.
    Sets(fn(&mut MountConfig, &str) -> Result<(), String>),
    /// A flag that the kernel itself applies.
    Kernel(fn(&mut MountConfig)),
    /// Accepted without effect: the text says why that is correct.
    Ignored,
    /// Refused: the text gives the reason and the next step.
    Refused,
}

/// A row of [`WORDS`].
pub struct Word {
    /// The word and its synonyms. A name that ends in `*` stands for all words with this prefix.
    pub names: &'static [&'static str],
    /// "" for none, "=WHAT", or "[=WHAT]" if it is optional.
    pub value: &'static str,
    pub origin: Origin,
    pub audience: Audience,
    pub fate: Fate,
    /// The effect of the word, or why it has none or is refused.
    pub text: &'static str,
}

impl Word {
    /// Whether the word changes the mount.
    pub fn has_effect(&self) -> bool {
        !matches!(self.fate, Fate::Ignored | Fate::Refused)
    }

    /// Whether the word may occur in a superblock (`tune2fs -E mount_opts=`), from which the kernel takes the words of
    /// its own driver. Excluded are words that decide how the image is opened, or that name files of the host.
    pub fn may_be_in_superblock(&self) -> bool {
        self.origin == Origin::Ext4
            && !self.names.iter().any(|name| matches!(*name, "sb" | "journal_path" | "journal_dev" | "norecovery"))
    }

    /// The word as it is written: `commit=SECONDS`.
    pub fn written(&self, name: &str) -> String {
        format!("{name}{}", self.value)
    }

    /// The possible values; empty if any value is valid, or none.
    pub fn choices(&self) -> Vec<&'static str> {
        if matches!(self.fate, Fate::Policy) {
            let policy = extant_fs::POLICIES.iter().find(|policy| self.names.contains(&policy.table.option));
            return policy.map_or_else(Vec::new, |policy| policy.table.rows.iter().map(|row| row.name).collect());
        }
        let value = self.value.trim_matches(['[', '=', ']']);
        let literal = |c: char| !c.is_ascii_uppercase();
        if !value.is_empty() && value.chars().all(literal) { value.split('|').collect() } else { Vec::new() }
    }

    /// Whether `value` has the form that the word requires.
    pub fn check_form(&self, value: Option<&str>) -> Result<(), String> {
        let optional = self.value.starts_with('[');
        match value {
            None if self.value.is_empty() || optional => Ok(()),
            None => Err(format!("a value is missing: {}", self.written(self.names[0]))),
            Some(_) if self.value.is_empty() => Err("it takes no value".into()),
            Some(value) => {
                let choices = self.choices();
                // The engine and the policies report invalid values themselves.
                if matches!(self.fate, Fate::Ignored) && !choices.is_empty() && !choices.contains(&value) {
                    return Err(format!("'{value}' is none of {}", choices.join(", ")));
                }
                Ok(())
            }
        }
    }
}

/// The row of the word `name`.
pub fn find(name: &str) -> Option<&'static Word> {
    let exact = WORDS.iter().find(|word| word.names.contains(&name));
    exact.or_else(|| {
        // These prefixes belong to mount(8). A word that is missing in the table may be newer than the table.
        let begins = |pattern: &&str| pattern.strip_suffix('*').is_some_and(|begin| name.starts_with(begin));
        WORDS.iter().find(|word| word.names.iter().any(begins) && !name.starts_with("X-mount."))
    })
}

/// The known word that is most similar to an unknown one, as it is written, up to its value. It is never the opposite:
/// a word that begins with "no" is only compared with such words, by the part after the "no".
pub fn nearest(name: &str) -> Option<String> {
    /// A threshold for the similarity in `strsim`: words that share half of their letters do not reach it.
    const ALIKE: f64 = 0.85;
    let stem = |word: &str| word.strip_prefix("no").map(|stem| stem.trim_start_matches('_').to_owned());
    let alike = |known: &str| match (stem(name), stem(known)) {
        (Some(a), Some(b)) => strsim::jaro_winkler(&a, &b),
        (None, None) => strsim::jaro_winkler(name, known),
        _ => 0.0,
    };
    let known = WORDS.iter().filter(|word| !matches!(word.fate, Fate::Refused));
    let known = known.flat_map(|word| word.names.iter().map(move |name| (word, *name)));
    let rated = known.filter(|(_, name)| !name.ends_with('*')).map(|(word, name)| (alike(name), word, name));
    let best = rated.filter(|(alike, ..)| *alike > ALIKE).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, word, name)| format!("{name}{}", if word.value.starts_with('=') { "=" } else { "" }))
}
