//! `extant encrypt`: gives empty directories an encryption policy (fscrypt).
//!
//! # Locking
//! None.

use extant_fs::{EncryptionPolicy, KeyName};

use super::verb::{File, Images};
use crate::args::{EncryptArgs, PolicyVersion};
use crate::failure::{Failure, Result};

pub fn run(args: &EncryptArgs, images: &mut Images) -> Result<()> {
    images.each(&args.paths, |_, file, _| one(args, file))
}

fn one(args: &EncryptArgs, file: &File) -> Result<()> {
    let Some([identifier, descriptor]) = file.fs.key_names() else {
        return Err(Failure::usage("which key? --key FILE names a file with the raw key"));
    };
    let KeyName::Identifier(bytes) = identifier else { return Err(Failure::usage("no identifier")) };
    let mut policy = EncryptionPolicy::new(bytes);
    if args.policy == PolicyVersion::V1 {
        policy.key = descriptor;
    }
    policy.flags = args.padding.trailing_zeros() as u8 - 2;
    let dir = file.walk(true)?;
    file.fs.set_encryption_policy(&dir, policy).map_err(|e| file.failed(e))
}
