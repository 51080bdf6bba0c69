//! Whether a process that makes a request is privileged over the mount: [`Callers`].
//!
//! A request names the thread that made it, its user and its group. User 0 may lack the capability, as in most
//! containers, or have it only in a user namespace of its own. So this module looks the thread up in /proc. The thread
//! waits in its system call for the reply. Meanwhile its ID is not reused, and its credentials do not change.
//!
//! Reading the namespace requires the right to trace the thread. A server that has dropped that right leaves it to
//! its [`Agent`].
//!
//! # Locking
//! None.

use std::fs::{metadata, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock};

use super::Agent;

/// Linux: include/uapi/linux/capability.h.
const CAP_SYS_ADMIN: u32 = 21;

/// Determines the privileges of the callers of one mount.
#[derive(Clone, Debug, Default)]
pub struct Callers {
    /// None: this process examines them itself.
    pub(super) agent: Arc<OnceLock<Agent>>,
}

impl Callers {
    /// Whether a thread that waits for the reply to its request has CAP_SYS_ADMIN in the user namespace of this
    /// process. False if that cannot be determined.
    pub fn is_privileged(&self, thread: u32) -> bool {
        match self.agent.get() {
            Some(agent) => agent.is_privileged(thread),
            None => is_privileged(thread),
        }
    }
}

impl Callers {
    /// Whether a thread, waiting for the reply to its request as user 0, may see attributes in `trusted.`. It may if it
    /// is privileged, or is not user 0 itself. In the latter case the kernel makes the request with the rights of
    /// another process, as overlayfs does with those of its mounter.
    pub(crate) fn may_see_trusted(&self, thread: u32) -> bool {
        self.is_privileged(thread) || file_system_user(thread).is_some_and(|user| user != 0)
    }
}

/// The user as which a thread makes requests to file systems (its fsuid).
fn file_system_user(thread: u32) -> Option<u32> {
    let status = read_to_string(format!("/proc/{thread}/status")).ok()?;
    field(&status, "Uid")?.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// Whether a thread, by its ID in the PID namespace of this process, has CAP_SYS_ADMIN in the user namespace of this
/// process. False for a thread that is missing in /proc.
pub(super) fn is_privileged(thread: u32) -> bool {
    let status = |of: &str| read_to_string(format!("/proc/{of}/status")).unwrap_or_default();
    let namespace = |of: &str| metadata(format!("/proc/{of}/ns/user")).map(|ns| (ns.dev(), ns.ino())).ok();
    let thread = thread.to_string();
    // In a /proc of another PID namespace, the ID belongs to another thread.
    let in_this_namespace =
        field(&status("self"), "NSpid").is_some_and(|ids| ids.split_ascii_whitespace().count() == 1);
    let effective = field(&status(&thread), "CapEff").and_then(|set| u64::from_str_radix(set, 16).ok());
    in_this_namespace
        && effective.is_some_and(|set| set >> CAP_SYS_ADMIN & 1 != 0)
        && namespace(&thread).is_some_and(|ns| namespace("self") == Some(ns))
}

/// A field of /proc/PID/status, without its name. Linux escapes line breaks in the process's own name.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn privilege_depends_on_capabilities_not_on_the_user() {
        let has = capabilities(None).expect("capabilities");
        let me = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(is_privileged(me()), has.effective.contains(CapabilitySet::SYS_ADMIN));
        let without = extant_base::task::spawn("without", move || {
            let effective = has.effective - CapabilitySet::SYS_ADMIN;
            set_capabilities(None, CapabilitySets { effective, ..has }).expect("given up");
            is_privileged(me())
        });
        assert!(!without.expect("started").join().expect("ended"));
        assert!(!is_privileged(0) && !is_privileged(u32::MAX));
    }

    #[test]
    fn fields_match_whole_names_only() {
        let status = "Name:\tCapEff: f\nNSpid:\t12\t1\nCapEffective:\tx\nCapEff:\t000000000000000f\n";
        assert_eq!(field(status, "NSpid"), Some("12\t1"));
        assert_eq!(field(status, "CapEff"), Some("000000000000000f"));
        assert_eq!(field(status, "Uid"), None);
    }
}
