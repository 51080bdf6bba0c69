//! The name of an export: `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH` (the NBD project's
//! doc/uri.md).
//!
//! Main type: [`NbdAddress`].
//!
//! # Locking
//! None.

use std::path::PathBuf;

/// The port if an address contains none (IANA).
const PORT: u16 = 10809;
/// The maximum length of an export name in the protocol, in bytes.
const EXPORT_MAX: usize = 4096;

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdAddress {
    /// The address at which the server listens.
    pub server: NbdServer,
    /// The name of the export; empty for the default export of the server.
    pub export: String,
}

/// The address at which an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdServer {
    /// A host name or address, and a port.
    Tcp(String, u16),
    /// A socket in the host's file system.
    Unix(PathBuf),
}

impl NbdAddress {
    /// Whether an argument is the address of an export, valid or not, and not the name of a file.
    pub fn is_one(word: &[u8]) -> bool {
        [&b"nbd://"[..], b"nbd+unix://", b"nbds://", b"nbds+unix://"].iter().any(|scheme| word.starts_with(scheme))
    }

    /// Parses an address.
    ///
    /// # Errors
    /// A sentence that describes the error.
    pub fn parse(word: &str) -> Result<NbdAddress, &'static str> {
        let (scheme, rest) = word.split_once("://").ok_or("an NBD address begins with nbd:// or nbd+unix://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let text = |encoded: &str| {
            String::from_utf8(decoded(encoded).ok_or("a percent sign without two hexadecimal digits")?)
                .map_err(|_| "the name is not UTF-8")
        };
        let export = text(path)?;
        if export.len() > EXPORT_MAX || export.contains('\0') {
            return Err("the export's name is too long, or has a NUL byte");
        }
        let server = match scheme {
            "nbd" => {
                if authority.contains('@') {
                    return Err("an NBD address has no user");
                }
                let (host, port) = split_port(authority)?;
                NbdServer::Tcp(host.to_owned(), port)
            }
            "nbd+unix" => {
                if !authority.is_empty() {
                    return Err("nbd+unix:// is followed by a third slash: nbd+unix:///EXPORT?socket=PATH");
                }
                let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
                let path = decoded(socket.ok_or("nbd+unix:///EXPORT?socket=PATH: the socket is missing")?)
                    .filter(|path| !path.is_empty() && !path.contains(&0))
                    .ok_or("socket=PATH: not a path")?;
                NbdServer::Unix(socket_path(path)?)
            }
            _ => return Err("TLS is not spoken; let 'nbdkit nbd' or a tunnel speak it, and name its Unix socket"),
        };
        Ok(NbdAddress { server, export })
    }
}

#[cfg(unix)]
fn socket_path(bytes: Vec<u8>) -> Result<PathBuf, &'static str> {
    use std::os::unix::ffi::OsStringExt;
    Ok(std::ffi::OsString::from_vec(bytes).into())
}

#[cfg(not(unix))]
fn socket_path(bytes: Vec<u8>) -> Result<PathBuf, &'static str> {
    String::from_utf8(bytes).map(PathBuf::from).map_err(|_| "socket=PATH: not UTF-8")
}

/// Splits host and port; an IPv6 address is in brackets.
fn split_port(authority: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("an IPv6 address ends with ']'")?,
        None => authority.find(':').map_or((authority, ""), |at| authority.split_at(at)),
    };
    if host.is_empty() {
        return Err("the host is missing: nbd://HOST/EXPORT");
    }
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok((host, PORT)),
        port => Ok((host, port.and_then(|port| port.parse().ok()).ok_or("the port is not a number up to 65535")?)),
    }
}

/// Decodes percent signs.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|d| char::from(d).to_digit(16));
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_server_and_an_export() {
        let tcp = |host: &str, port, export: &str| {
            Ok(NbdAddress { server: NbdServer::Tcp(host.into(), port), export: export.into() })
        };
        let unix =
            |path: &str, export: &str| Ok(NbdAddress { server: NbdServer::Unix(path.into()), export: export.into() });
        assert_eq!(NbdAddress::parse("nbd://host"), tcp("host", 10809, ""));
        assert_eq!(NbdAddress::parse("nbd://host:99/a/b%20c"), tcp("host", 99, "a/b c"));
        assert_eq!(NbdAddress::parse("nbd://[::1]:99/"), tcp("::1", 99, ""));
        assert_eq!(NbdAddress::parse("nbd+unix:///?socket=/run/s"), unix("/run/s", ""));
        assert_eq!(NbdAddress::parse("nbd+unix:///e?x=1&socket=/run/%61"), unix("/run/a", "e"));
        for wrong in [
            "nbd:",
            "nbd://",
            "nbd:///e",
            "nbd://h:x/",
            "nbd://h:99999/",
            "nbd://[::1/",
            "nbd://u@h/",
            "nbd+unix:///e",
            "nbd+unix://h/e?socket=/s",
            "nbd+unix:///?socket=",
            "nbd+unix:///?socket=%00",
            "nbds://h/",
            "nbd://h/%4",
            "nbd://h/%zz",
            "nbd://h/%ff",
            "nbd://h/%00",
        ] {
            assert!(NbdAddress::parse(wrong).is_err(), "{wrong}");
        }
        assert!(NbdAddress::parse(&format!("nbd://h/{}", "e".repeat(5000))).is_err());
        assert!(NbdAddress::is_one(b"nbds://x") && !NbdAddress::is_one(b"nbd:x") && !NbdAddress::is_one(b"x"));
    }
}
