//! OCI image layouts: layers make the tree from which they were made, and damaged layouts are refused.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::common::{assert_same, bytes, find, lines, make_tree, run};
use extant_build::Result;
use extant_build::source::{Options, Source, Word};
use extant_build::tree::Body;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The source that a word of a command line names.
fn open(word: &std::ffi::OsStr) -> Result<Source> {
    Source::open(&Word::parse(word)?, Options::default())
}

/// A layout under construction.
struct Maker {
    dir: PathBuf,
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The archive in a layer.
fn unpacked(layer: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut stream: Box<dyn Read + '_> = match layer {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(layer)),
        [0xfd, b'7', ..] => Box::new(liblzma::read::XzDecoder::new(layer)),
        [0x28, 0xb5, ..] => Box::new(zstd::Decoder::new(layer).expect("zstd")),
        _ => Box::new(layer),
    };
    stream.read_to_end(&mut archive).expect("unpacked");
    archive
}

impl Maker {
    fn new(dir: PathBuf) -> Maker {
        fs::create_dir_all(dir.join("blobs/sha256")).expect("directories");
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).expect("written");
        Maker { dir }
    }

    fn blob(&self, kind: &str, bytes: &[u8]) -> Value {
        let hex = sha256(bytes);
        fs::write(self.dir.join("blobs/sha256").join(&hex), bytes).expect("written");
        let media_type = format!("application/vnd.oci.image.{kind}");
        json!({"mediaType": media_type, "digest": format!("sha256:{hex}"), "size": bytes.len()})
    }

    fn document(&self, kind: &str, value: &Value) -> Value {
        self.blob(kind, value.to_string().as_bytes())
    }

    /// A manifest of layers.
    fn image(&self, layers: &[Vec<u8>]) -> Value {
        let ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", sha256(&unpacked(layer)))).collect();
        self.image_of(layers, &ids)
    }

    /// A manifest of layers, and a configuration with these digests of their archives.
    fn image_of(&self, layers: &[Vec<u8>], ids: &[String]) -> Value {
        let config = json!({"architecture": "any", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids}});
        let config = self.document("config.v1+json", &config);
        let layers: Vec<Value> = layers.iter().map(|layer| self.blob("layer.v1.tar+gzip", layer)).collect();
        self.document("manifest.v1+json", &json!({"schemaVersion": 2, "config": config, "layers": layers}))
    }

    fn index(&self, manifests: &[Value]) {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.dir.join("index.json"), index.to_string()).expect("written");
    }

    fn read(&self, tag: Option<&str>) -> Result<Source> {
        Source::oci(&self.dir, tag, Options::default())
    }

    fn refused(&self, tag: Option<&str>) -> String {
        let said = self.read(tag).err().expect("refused").to_string();
        let said = said.strip_prefix(&format!("{}", self.dir.display())).expect("the layout is named");
        said.trim_start_matches('/').to_owned()
    }
}

fn tagged(mut manifest: Value, tag: &str) -> Value {
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
    manifest
}

fn of_platform(mut manifest: Value, os: &str, architecture: &str) -> Value {
    manifest["platform"] = json!({"os": os, "architecture": architecture});
    manifest
}

const HERE: &str = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };

/// A layer of some members of a directory.
fn layer(dir: &Path, compress: &[&str], members: &[&str]) -> Vec<u8> {
    let posix = ["--format=posix", "--xattrs", "--xattrs-include=*", "--acls", "-S", "-c"];
    run("tar", &[&posix, compress, members].concat(), dir)
}

/// A layer of files `(path, content)`; a path that ends in a slash is a directory's, `a=b` a hard link, `a>b` a
/// symbolic one.
fn made(members: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (path, content) in members {
        let mut block = vec![0; 512];
        let (path, kind, target) = match path.split_once(['=', '>']) {
            Some((name, target)) if path.contains('=') => (name, b'1', target),
            Some((name, target)) => (name, b'2', target),
            None if path.ends_with('/') => (*path, b'5', ""),
            None => (*path, b'0', ""),
        };
        block[..path.len()].copy_from_slice(path.as_bytes());
        block[100..108].copy_from_slice(b"0000644\0");
        block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        block[156] = kind;
        block[157..157 + target.len()].copy_from_slice(target.as_bytes());
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block.extend_from_slice(content.as_bytes());
        block.resize(block.len().next_multiple_of(512), 0);
        bytes.extend(block);
    }
    bytes.extend([0; 1024]);
    bytes
}

/// The names of a tree, and the contents of its files.
fn shown(source: &Source) -> Vec<String> {
    let paths = lines(&source.tree).into_iter().map(|line| line.split("/ #").next().expect("a path").to_owned());
    paths
        .filter(|path| !path.is_empty())
        .map(|path| match source.tree.node(find(&source.tree, &path).expect("there")).body {
            Body::File { size, content, .. } => {
                let text = String::from_utf8(bytes(&*source.content, content, size)).expect("text");
                format!("{path}={text}")
            }
            _ => path,
        })
        .collect()
}

/// The tree of layers with such members.
fn applied(layers: &[&[(&str, &str)]]) -> Result<Vec<String>> {
    let dir = tempfile::tempdir().expect("directory");
    let maker = Maker::new(dir.path().to_owned());
    let layers: Vec<Vec<u8>> = layers.iter().map(|members| made(members)).collect();
    maker.index(&[maker.image(&layers)]);
    maker.read(None).map(|source| shown(&source))
}

#[test]
fn layers_come_to_the_tree_that_they_were_made_of() {
    let dir = tempfile::tempdir().expect("directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("a directory");
    make_tree(&tree);
    let directory = Source::directory(&tree, Options::default()).expect("read");
    for compress in [&[][..], &["--gzip"], &["--zstd"], &["--xz"]] {
        let maker = Maker::new(dir.path().join(format!("layout{}", compress.join(""))));
        // The second layer has all directories again, because their times changed with its entries.
        let first = layer(&tree, compress, &["--exclude=./dir/below/deep", "--exclude=./link", "."]);
        let rest = ["--no-recursion", ".", "dir", "dir/below", "dir/below/deep", "dir/below/deep/x", "link"];
        let second = layer(&tree, compress, &rest);
        maker.index(&[maker.image(&[first, second])]);
        assert_same(&directory, &maker.read(None).expect("read"));
    }
}

#[test]
fn whiteouts_hide_what_lower_layers_have_and_nothing_of_their_own() {
    let lower: &[_] = &[("a", "1"), ("d/x", "1"), ("d/sub/y", "1"), ("o/old", "1"), ("keep", "1")];
    let upper: &[_] =
        &[("o/new", "2"), ("d/.wh.x", ""), ("d/x2", "2"), (".wh.a", ""), ("o/.wh..wh..opq", ""), (".wh.none", "")];
    let expected = ["/d", "/d/sub", "/d/sub/y=1", "/d/x2=2", "/keep=1", "/o", "/o/new=2"];
    assert_eq!(applied(&[lower, upper]).expect("read"), expected);
    // A layer that hides a name and contains it, in either order.
    for again in [&[(".wh.d", ""), ("d/new", "2")][..], &[("d/new", "2"), (".wh.d", "")]] {
        assert_eq!(applied(&[lower, again]).expect("read"), ["/a=1", "/d", "/d/new=2", "/keep=1", "/o", "/o/old=1"]);
    }
    assert_eq!(applied(&[lower, &[(".wh..wh..opq", "")]]).expect("read"), [""; 0]);
    assert_eq!(
        applied(&[lower, &[(".wh..wh.plnk/", ""), (".wh..wh.plnk/1", "x"), (".wh..wh.aufs", "")]]).expect("read").len(),
        8
    );
    for (name, path) in [(".wh.", ".wh."), (".wh..", ".wh.."), ("d/.wh...", "d/.wh...")] {
        let said = applied(&[lower, &[(name, "")]]).expect_err("refused").to_string();
        assert!(said.ends_with(&format!("{path}: a whiteout of no name")), "{said}");
    }
}

#[test]
fn a_hard_link_outlives_a_name_that_an_upper_layer_hides() {
    let lower: &[_] = &[("a", "1"), ("b=a", "")];
    assert_eq!(applied(&[lower, &[(".wh.a", "")]]).expect("read"), ["/b=1"]);
    assert_eq!(applied(&[lower, &[("a", "2")]]).expect("read"), ["/a=2", "/b=1"]);
    // A link of the layer that hides its target, and one to the name that replaces it.
    assert_eq!(applied(&[&[("a", "1")], &[(".wh.a", ""), ("c=a", "")]]).expect("read"), ["/c=1"]);
    assert_eq!(applied(&[&[("a", "1")], &[(".wh.a", ""), ("c=a", ""), ("./a", "2")]]).expect("read"), ["/a=2", "/c=2"]);
    let said = applied(&[lower, &[("c=none", "")]]).expect_err("refused").to_string();
    assert!(said.ends_with(": c: a hard link to none, which is not there (at byte 0)"), "{said}");
}

#[test]
fn parents_that_are_links_lead_where_they_do_in_a_container() {
    let lower: &[_] = &[("usr/lib/", ""), ("lib>usr/lib", "")];
    let upper: &[_] = &[("lib/x", "2")];
    assert_eq!(applied(&[lower, upper]).expect("read"), ["/lib", "/usr", "/usr/lib", "/usr/lib/x=2"]);
    assert_eq!(applied(&[lower, upper, &[("lib/.wh.x", "")]]).expect("read"), ["/lib", "/usr", "/usr/lib"]);
    let out: &[_] = &[("out>../../etc", ""), ("out/passwd", "2")];
    assert_eq!(applied(&[out]).expect("read"), ["/etc", "/etc/passwd=2", "/out"]);
    let said = applied(&[&[("../x", "")]]).expect_err("refused").to_string();
    assert!(said.contains(": ../x: the name .. leads out of its directory"), "{said}");
}

#[test]
fn the_image_is_chosen_by_tag_and_by_platform() {
    let dir = tempfile::tempdir().expect("directory");
    let maker = Maker::new(dir.path().to_owned());
    let image = |content: &str| maker.image(&[made(&[("f", content)])]);
    let names = |tag| maker.read(tag).map(|source| shown(&source));
    maker.index(&[tagged(image("one"), "v1"), tagged(image("two"), "v2")]);
    assert_eq!(names(Some("v2")).expect("read"), ["/f=two"]);
    assert_eq!(maker.refused(None), "index.json: has more than one image; name a tag: there are: v1, v2");
    assert_eq!(maker.refused(Some("v3")), "index.json: has no image with the tag v3; there are: v1, v2");
    maker.index(&[image("one")]);
    assert_eq!(maker.refused(Some("v3")), "index.json: has no image with the tag v3; it has no tags");
    maker.index(&[]);
    assert_eq!(maker.refused(None), "index.json: has no image");
    let platforms = [
        of_platform(image("other"), "linux", "z80"),
        of_platform(image("here"), "linux", HERE),
        of_platform(image("attested"), "unknown", "unknown"),
    ];
    let nested = maker.document("index.v1+json", &json!({"manifests": platforms}));
    maker.index(&[tagged(nested, "latest")]);
    assert_eq!(names(None).expect("read"), ["/f=here"]);
    let word = |word: String| open(word.as_ref());
    let path = dir.path().display();
    assert_eq!(shown(&word(format!("oci:{path}:latest")).expect("read")), ["/f=here"]);
    assert_eq!(shown(&word(format!("oci:{path}")).expect("read")), ["/f=here"]);
    assert!(word(format!("oci:{path}:none")).is_err());
    let only = [of_platform(image("other"), "linux", "z80"), of_platform(image("attested"), "unknown", "unknown")];
    maker.index(&only);
    assert_eq!(names(None).expect("read"), ["/f=other"]);
    maker.index(&[of_platform(image("a"), "linux", "z80"), of_platform(image("b"), "linux", "6502")]);
    assert_eq!(maker.refused(None), format!("index.json: has 2 images, none of them for linux/{HERE}"));
}

#[test]
fn an_image_with_several_tags_is_one_image() {
    let dir = tempfile::tempdir().expect("directory");
    let maker = Maker::new(dir.path().to_owned());
    let image = |text: &str| maker.image(&[made(&[("f", text)])]);
    // As 'docker save name:latest name:v1' writes them.
    maker.index(&[tagged(image("one"), "latest"), tagged(image("one"), "v1")]);
    for tag in [None, Some("latest"), Some("v1")] {
        assert_eq!(shown(&maker.read(tag).expect("read")), ["/f=one"], "{tag:?}");
    }
    maker.index(&[tagged(image("one"), "latest"), tagged(image("two"), "v1")]);
    let said = maker.refused(None);
    assert_eq!(said, "index.json: has more than one image; name a tag: there are: latest, v1");
    // Two images with the same tag.
    let whole = |text: &str, name: &str| {
        let mut manifest = tagged(image(text), "latest");
        manifest["annotations"]["io.containerd.image.name"] = name.into();
        manifest
    };
    maker.index(&[whole("one", "docker.io/library/alpine:latest"), whole("two", "docker.io/library/busybox:latest")]);
    assert!(maker.refused(None).contains("name a tag: there are: docker.io/library/alpine:latest, "));
    for (tag, text) in [("alpine:latest", "one"), ("docker.io/library/busybox:latest", "two")] {
        assert_eq!(shown(&maker.read(Some(tag)).expect("read")), [format!("/f={text}")], "{tag}");
    }
    for tag in ["latest", "pine:latest", "other:latest", ""] {
        assert!(maker.read(Some(tag)).is_err(), "{tag}");
    }
}

#[test]
fn damaged_blobs_are_named() {
    let dir = tempfile::tempdir().expect("directory");
    let maker = Maker::new(dir.path().to_owned());
    let layers = [made(&[("f", "one")]), layer(Path::new("/usr/share/zoneinfo"), &["--gzip"], &["UTC"])];
    let manifest = maker.image(&layers);
    maker.index(std::slice::from_ref(&manifest));
    assert!(maker.read(None).is_ok());
    let digest = |value: &Value| value["digest"].as_str().expect("a digest")["sha256:".len()..].to_owned();
    let document: Value =
        serde_json::from_slice(&fs::read(dir.path().join("blobs/sha256").join(digest(&manifest))).expect("read"))
            .expect("JSON");
    let blobs = [&manifest, &document["config"], &document["layers"][0], &document["layers"][1]];
    for blob in blobs.map(digest) {
        let path = dir.path().join("blobs/sha256").join(&blob);
        let sound = fs::read(&path).expect("read");
        for place in [0, sound.len() / 2, sound.len() - 1] {
            let mut bytes = sound.clone();
            bytes[place] ^= 1;
            let found = sha256(&bytes);
            fs::write(&path, bytes).expect("written");
            let said = format!("blob sha256:{blob}: its digest is sha256:{found}: it is damaged, or was changed");
            assert_eq!(maker.refused(None), said, "byte {place}");
        }
        fs::write(&path, &sound[..sound.len() - 1]).expect("written");
        let (less, size) = (sound.len() - 1, sound.len());
        assert_eq!(maker.refused(None), format!("blob sha256:{blob}: has {less} bytes, and should have {size}"));
        fs::remove_file(&path).expect("removed");
        assert_eq!(maker.refused(None), format!("blob sha256:{blob}: No such file or directory"));
        fs::write(&path, sound).expect("written");
    }
}

/// Each takes two thirds of the memory that a source may take.
#[test]
fn memory_of_entries_counts_for_all_layers_together() {
    let dir = tempfile::tempdir().expect("directory");
    let layers = ["a", "b"].map(|name| {
        // Records of one length: " SCHILY.xattr.user.a=", the value and the end of the line.
        let record = format!("{} SCHILY.xattr.user.{name}={}\n", 7 + 22 + (1 << 20), "x".repeat(1 << 20));
        let mut archive = made(&[("global", &record)]);
        // The checksum grows with the kind.
        archive[156] = b'g';
        let sum = u32::from_str_radix(std::str::from_utf8(&archive[148..154]).expect("digits"), 8).expect("a number");
        let sum = sum + u32::from(b'g') - u32::from(b'0');
        archive[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        archive.truncate(archive.len() - 1024);
        let names: Vec<String> = (0..44).map(|n| format!("{name}{n}")).collect();
        archive.extend(made(&names.iter().map(|name| (name.as_str(), "")).collect::<Vec<_>>()));
        fs::write(dir.path().join("layer"), archive).expect("written");
        run("gzip", &["-c", "layer"], dir.path())
    });
    let maker = Maker::new(dir.path().join("layout"));
    for layer in &layers {
        maker.index(&[maker.image(std::slice::from_ref(layer))]);
        assert!(maker.read(None).is_ok());
    }
    maker.index(&[maker.image(&layers)]);
    let said = maker.refused(None);
    assert!(said.contains("names, attributes and sparse maps up to here take "), "{said}");
}

#[test]
fn a_layer_must_have_the_digest_that_the_configuration_says() {
    let dir = tempfile::tempdir().expect("directory");
    let maker = Maker::new(dir.path().to_owned());
    let digest = |bytes: &[u8]| format!("sha256:{}", sha256(bytes));
    let zones = Path::new("/usr/share/zoneinfo");
    let first = made(&[("f", "one")]);
    for compress in [&[][..], &["--gzip"], &["--zstd"], &["--xz"]] {
        let second = layer(zones, compress, &["UTC"]);
        let (blob, sound) = (digest(&second), digest(&unpacked(&second)));
        let layers = [first.clone(), second];
        let ids = |second: &str| [digest(&first), second.to_owned()];
        maker.index(&[maker.image_of(&layers, &ids(&sound))]);
        assert!(maker.read(None).is_ok(), "{compress:?}");
        let upper = sound.to_uppercase();
        for wrong in [&digest(b"other"), "sha512:00", "none", &upper] {
            maker.index(&[maker.image_of(&layers, &ids(wrong))]);
            let said = format!(
                "blob {blob}: the digest of its archive is {sound}, and that in the image's configuration {wrong}: \
                 the layer is of another image, or was damaged before it was compressed; make the layout again"
            );
            assert_eq!(maker.refused(None), said, "{compress:?}");
        }
    }
}

#[test]
fn a_fifo_in_the_place_of_a_file_is_not_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let dir = tempfile::tempdir().expect("directory");
    let maker = Maker::new(dir.path().to_owned());
    let image = maker.image(&[made(&[("f", "one")])]);
    maker.index(std::slice::from_ref(&image));
    let blobs = fs::read_dir(dir.path().join("blobs/sha256")).expect("read").map(|blob| blob.expect("read").path());
    for path in blobs.chain(["oci-layout", "index.json"].map(|name| dir.path().join(name))) {
        let sound = fs::read(&path).expect("read");
        fs::remove_file(&path).expect("removed");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
        let (said, name) = (maker.refused(None), path.file_name().and_then(|name| name.to_str()).expect("a name"));
        assert!(said.contains(&format!("{name}: is not a regular file")), "{said}");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, sound).expect("written");
    }
    assert!(maker.read(None).is_ok());
}

#[test]
fn a_repeated_mark_hides_nothing_more() {
    let lower: &[_] = &[("a", "1"), ("d/x", "1"), ("d/e/y", "1"), ("link=d/e/y", "")];
    let root: &[_] = &[(".wh..wh..opq", ""), ("d/x", "2"), ("./.wh..wh..opq", ""), ("new=a", ""), (".wh..wh..opq", "")];
    assert_eq!(applied(&[lower, root]).expect("read"), ["/d", "/d/x=2", "/new=1"]);
    let below: &[_] = &[("d/.wh..wh..opq", ""), ("d/z", "2"), ("d/.wh..wh..opq", ""), ("f=d/e/y", "")];
    assert_eq!(applied(&[lower, below]).expect("read"), ["/a=1", "/d", "/d/z=2", "/f=1", "/link=1"]);
}

#[test]
fn layouts_that_are_none_are_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let none = dir.path().join("none");
    let said = Source::oci(&none, None, Options::default()).err().expect("refused").to_string();
    let no_image = "is neither an OCI image layout nor a 'docker save' archive; leave the prefix out to take its files";
    assert!(said.ends_with(&format!("none: {no_image}")), "{said}");
    let maker = Maker::new(dir.path().join("layout"));
    let image = maker.image(&[made(&[("f", "one")])]);
    fs::write(maker.dir.join("oci-layout"), r#"{"imageLayoutVersion": "2.0"}"#).expect("written");
    assert_eq!(maker.refused(None), "oci-layout: version 2.0 of image layouts is not known");
    fs::write(maker.dir.join("oci-layout"), "{").expect("written");
    assert!(maker.refused(None).starts_with("oci-layout: is not understood: "));
    fs::write(maker.dir.join("oci-layout"), r#"{"imageLayoutVersion": "1.1.0"}"#).expect("written");
    for (digest, name) in [
        ("sha512:00", "blob sha512:00"),
        ("sha256:../../../etc/passwd", "blob sha256:../../../etc/passwd"),
        (&format!("sha256:{}", "A".repeat(64)), &format!("blob sha256:{}", "A".repeat(64))),
    ] {
        let mut image = image.clone();
        image["digest"] = digest.into();
        maker.index(&[image]);
        assert_eq!(maker.refused(None), format!("{name}: its digest is not of SHA-256"));
    }
    let mut large = image.clone();
    large["size"] = (1u64 << 40).into();
    maker.index(&[large]);
    assert!(maker.refused(None).ends_with("is larger than 4194304 bytes"));
    let neither = maker.document("manifest.v1+json", &json!({"x": 1}));
    maker.index(&[neither]);
    assert!(maker.refused(None).ends_with("is neither a manifest with layers nor an index"));
    let mut nested = image;
    for _ in 0..9 {
        nested = maker.document("index.v1+json", &json!({"manifests": [nested]}));
    }
    maker.index(&[nested]);
    assert_eq!(maker.refused(None), "index.json: leads through more than 8 indexes");
    let config = maker.document("config.v1+json", &json!({"rootfs": {"diff_ids": ["sha256:0"]}}));
    let other = maker.document("manifest.v1+json", &json!({"config": config, "layers": []}));
    maker.index(&[other]);
    assert!(maker.refused(None).ends_with("names 1 layers, but the manifest 0"));
    let artifact = maker.blob("something", b"x");
    let other = maker.document("manifest.v1+json", &json!({"config": config, "layers": [artifact]}));
    maker.index(&[other]);
    assert!(
        maker.refused(None).ends_with("is of type application/vnd.oci.image.something, which is no layer of files")
    );
}

/// An image in all its forms: directories and archives by name.
fn all_forms(dir: &Path) -> Vec<String> {
    let lower = made(&[("d/", ""), ("d/old", "old"), ("d/gone", "x"), ("l>d", "")]);
    let upper = made(&[("d/.wh.gone", ""), ("d/old", "new"), ("l/through", "y"), ("hard=d/old", "")]);
    let gzip = |bytes: &[u8]| {
        fs::write(dir.join("packed"), bytes).expect("written");
        run("gzip", &["-cn", "packed"], dir)
    };
    let maker = Maker::new(dir.join("layout"));
    let (packed, plain) = (maker.blob("layer.v1.tar+gzip", &gzip(&lower)), maker.blob("layer.v1.tar", &upper));
    let ids = [&lower, &upper].map(|layer| format!("sha256:{}", sha256(layer)));
    let rootfs = json!({"architecture": "any", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids}});
    let config = maker.document("config.v1+json", &rootfs);
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [packed, plain]});
    let named = maker.document("manifest.v1+json", &manifest);
    maker.index(&[tagged(named, "latest")]);
    let of = |value: &Value| value["digest"].as_str().expect("a digest")["sha256:".len()..].to_owned();
    // Docker 25 and later write both.
    let blobs = [&config, &packed, &plain].map(|blob| format!("blobs/sha256/{}", of(blob)));
    run("cp", &["-r", "layout", "both"], dir);
    let list = json!([{"Config": blobs[0], "RepoTags": ["t:latest"], "Layers": blobs[1..]}]);
    fs::write(dir.join("both/manifest.json"), list.to_string()).expect("written");
    // Older ones, and podman, whose second layer is a link.
    fs::create_dir_all(dir.join("old/l1")).and_then(|()| fs::create_dir(dir.join("old/l2"))).expect("directories");
    fs::write(dir.join("old/l1/layer.tar"), &lower).expect("written");
    fs::write(dir.join("old/two.tar"), &upper).expect("written");
    std::os::unix::fs::symlink("../two.tar", dir.join("old/l2/layer.tar")).expect("a link");
    fs::write(dir.join("old/cfg.json"), rootfs.to_string()).expect("written");
    let list = json!([{"Config": "cfg.json", "RepoTags": ["t:latest"], "Layers": ["l1/layer.tar", "l2/layer.tar"]}]);
    fs::write(dir.join("old/manifest.json"), list.to_string()).expect("written");
    // skopeo's dir:.
    fs::create_dir(dir.join("flat")).expect("directory");
    for blob in [&config, &packed, &plain] {
        fs::copy(dir.join("layout/blobs/sha256").join(of(blob)), dir.join("flat").join(of(blob))).expect("copied");
    }
    fs::write(dir.join("flat/manifest.json"), manifest.to_string()).expect("written");
    fs::write(dir.join("flat/version"), "Directory Transport Version: 1.1\n").expect("written");
    let mut forms = Vec::new();
    for form in ["layout", "both", "old", "flat"] {
        run("tar", &["-cf", &format!("{form}.tar"), "-C", form, "."], dir);
        run("sh", &["-c", &format!("tar -cf named-{form}.tar -C {form} $(ls {form})")], dir);
        run("sh", &["-c", &format!("gzip -c {form}.tar > {form}.tar.gz")], dir);
        forms.extend([form.to_owned(), format!("{form}.tar"), format!("named-{form}.tar"), format!("{form}.tar.gz")]);
    }
    forms
}

#[test]
fn images_are_known_by_their_content_in_directories_archives_and_streams() {
    let dir = tempfile::tempdir().expect("directory");
    let forms = all_forms(dir.path());
    let open = |word: String| open(word.as_ref());
    let at = |name: &str| format!("{}/{name}", dir.path().display());
    let expected = open(format!("oci:{}", at("layout"))).expect("read");
    assert_eq!(shown(&expected), ["/d", "/d/old=new", "/d/through=y", "/hard=new", "/l"]);
    for form in &forms {
        for word in [at(form), format!("oci:{}", at(form)), format!("docker-archive:{}", at(form))] {
            assert_same(&open(word.clone()).unwrap_or_else(|e| panic!("{word}: {e}")), &expected);
        }
        if Path::new(&at(form)).is_file() {
            let file = fs::File::open(at(form)).expect("opened");
            let stream = Source::tar_stream("-".into(), Box::new(file), Options::default());
            assert_same(&stream.unwrap_or_else(|e| panic!("{form}: {e}")), &expected);
        }
        for tag in ["latest", "none"] {
            let found = open(format!("oci-archive:{}:{tag}", at(form)));
            let said = found.as_ref().err().map(ToString::to_string).unwrap_or_default();
            assert_eq!(found.is_ok(), tag == "latest" && !form.contains("flat"), "{form}: {said}");
            let wrong =
                [".json: has no image with the tag none; there are: ", ".json: is of one image, which has no tag"];
            assert!(found.is_ok() || wrong.iter().any(|words| said.contains(words)), "{said}");
        }
    }
    assert_same(&open(format!("docker-archive:{}:t:latest", at("old.tar"))).expect("read"), &expected);
    // A form that takes the files as they are.
    for word in [format!("tar:{}", at("layout.tar")), format!("dir:{}", at("layout"))] {
        assert!(lines(&open(word).expect("read").tree).iter().any(|line| line.starts_with("/blobs/sha256/")));
    }
    assert!(open(format!("tar:{}", at("layout"))).err().expect("refused").to_string().contains("is a directory"));
    assert!(open(format!("dir:{}", at("layout.tar"))).err().expect("refused").to_string().contains("Not a directory"));
}

#[test]
fn an_image_with_a_missing_part_is_refused_and_never_taken_for_files() {
    let dir = tempfile::tempdir().expect("directory");
    all_forms(dir.path());
    for (form, missing, words) in [
        ("layout", "index.json", "index.json: No such file"),
        ("layout", "blobs", ": No such file"),
        ("old", "cfg.json", "cfg.json: No such file"),
        ("old", "two.tar", "l2/layer.tar: No such file"),
    ] {
        let (copy, archive) = (dir.path().join("copy"), dir.path().join("copy.tar"));
        let _ = fs::remove_dir_all(&copy);
        run("cp", &["-r", form, "copy"], dir.path());
        run("rm", &["-r", &format!("copy/{missing}")], dir.path());
        run("tar", &["-cf", "copy.tar", "-C", "copy", "."], dir.path());
        for path in [copy, archive] {
            let said = open(path.as_ref()).err().expect("refused").to_string();
            assert!(said.contains(words), "{form} without {missing}: {said}");
        }
    }
}

#[test]
fn messages_are_short_however_long_the_words_of_a_document_are() {
    let dir = tempfile::tempdir().expect("directory");
    let long = "n".repeat(1 << 20);
    let write = |name: &str, value: Value| fs::write(dir.path().join(name), value.to_string()).expect("written");
    let said = || {
        let said = open(dir.path().as_ref()).err().expect("refused").to_string();
        assert!(said.len() < 2000, "{} bytes", said.len());
    };
    for (config, layer) in [(&*long, "l"), ("c", &long)] {
        write("c", json!({"rootfs": {"diff_ids": [long]}}));
        write("manifest.json", json!([{"Config": config, "RepoTags": [long], "Layers": [layer]}]));
        said();
    }
    fs::write(dir.path().join("l"), made(&[("f", "")])).expect("written");
    write("manifest.json", json!([{"Config": "c", "RepoTags": null, "Layers": ["l"]}]));
    said();
    write("oci-layout", json!({"imageLayoutVersion": long}));
    said();
    write("oci-layout", json!({"imageLayoutVersion": "1.0.0"}));
    let descriptor = json!({"digest": long, "size": 1, "annotations": {"org.opencontainers.image.ref.name": long}});
    for index in [json!({"manifests": [descriptor]}), json!({"manifests": long}), json!({"manifests": []})] {
        write("index.json", index);
        said();
    }
}

#[test]
fn documents_of_an_image_lead_to_nothing_outside_of_it() {
    let dir = tempfile::tempdir().expect("directory");
    fs::write(dir.path().join("secret.tar"), made(&[("secret", "x")])).expect("written");
    let image = dir.path().join("image");
    fs::create_dir(&image).expect("directory");
    let config = json!({"rootfs": {"diff_ids": [format!("sha256:{}", sha256(&made(&[("secret", "x")])))]}});
    fs::write(image.join("cfg.json"), config.to_string()).expect("written");
    for path in ["../secret.tar".to_owned(), format!("{}/secret.tar", dir.path().display())] {
        let list = json!([{"Config": "cfg.json", "RepoTags": null, "Layers": [path]}]);
        fs::write(image.join("manifest.json"), list.to_string()).expect("written");
        let said = open(image.as_ref()).err().expect("refused").to_string();
        assert!(said.ends_with("secret.tar: its path leads out of the image"), "{said}");
        run("tar", &["-cf", "../image.tar", "."], &image);
        let said = open(dir.path().join("image.tar").as_ref()).err().expect("refused");
        assert!(said.to_string().contains("secret.tar: No such file in the archive"), "{said}");
    }
}

#[test]
fn a_root_file_system_with_documents_of_other_programs_stays_one() {
    let dir = tempfile::tempdir().expect("directory");
    for (name, content) in [
        ("manifest.json", r#"{"name": "a web page", "icons": []}"#),
        ("manifest.json", "[]"),
        ("manifest.json", r#"[{"Config": 7}]"#),
        ("manifest.json", r#"{"layers": [], "config": {"digest": "sha256:0", "size": 1}}"#),
        ("oci-layout", "not JSON"),
        ("oci-layout", "{}"),
    ] {
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).expect("directory");
        fs::write(tree.join(name), content).expect("written");
        run("tar", &["-cf", "../tree.tar", "."], &tree);
        for path in [tree.clone(), dir.path().join("tree.tar")] {
            let source = open(path.as_ref()).expect("read");
            assert_eq!(shown(&source), [format!("/{name}={content}")]);
        }
        fs::remove_dir_all(tree).expect("removed");
    }
}
