//! fscrypt by the kernel: keys and policies on the kernel's own mount, through python3, which can send their ioctls.
//!
//! # Locking
//! None.

use std::path::Path;

use crate::{Result, arg, run_ok};

/// Sends `FS_IOC_ADD_ENCRYPTION_KEY`; prints the identifier that the kernel derives, in hex.
const ADD_KEY: &str = "
import fcntl, os, struct, sys
key, name = bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
spec = struct.pack('<II32s', 1 if name else 2, 0, name)
arg = bytearray(spec + struct.pack('<II32s', len(key), 0, b'') + key)
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0xC0506617, arg, True)
print(arg[8:24].hex())
";

/// Sends `FS_IOC_SET_ENCRYPTION_POLICY`.
const SET_POLICY: &str = "
import fcntl, os, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x800C6613, bytes.fromhex(sys.argv[2]))
";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Adds a raw key to the mount on `top`: for policies of version 1 with this descriptor, or for those of version 2.
/// Returns the identifier of the latter, in hex.
///
/// # Errors
/// The kernel lacks fscrypt, or refuses the key; python3 is missing.
pub fn add_key(top: &Path, key: &[u8], descriptor: Option<&[u8]>) -> Result<String> {
    let said = run_ok("python3", &["-c", ADD_KEY, arg(top), &hex(key), &hex(descriptor.unwrap_or_default())])?;
    Ok(said.trim().to_owned())
}

/// Sets the policy of an empty directory. `policy`: as the ioctl takes it, a context without its nonce.
///
/// # Errors
/// The kernel refuses it, or lacks a cipher.
pub fn set_policy(dir: &Path, policy: &[u8]) -> Result<()> {
    run_ok("python3", &["-c", SET_POLICY, arg(dir), &hex(policy)]).map(drop)
}
