//! Random additions, removals and listings against a map of names.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use extant_base::rng::Rng;
use extant_ondisk::htree::HashVersion;
use extant_ondisk::inode::FileType;
use extant_ondisk::units::InodeNr;
use proptest::prelude::*;

use super::super::*;
use super::Collisions;
use super::store::{MemDir, StoreError, params};

type Model = BTreeMap<Vec<u8>, u32>;

fn random_name(rng: &mut Rng) -> Vec<u8> {
    let len = if rng.one_in(10) { 200 + rng.below(56) } else { 1 + rng.below(24) } as usize;
    (0..len).map(|_| if rng.one_in(8) { 0x80 + rng.below(128) as u8 } else { b'a' + rng.below(26) as u8 }).collect()
}

fn pick(rng: &mut Rng, model: &Model) -> Option<Vec<u8>> {
    let start = random_name(rng);
    model.range(start..).next().or_else(|| model.iter().next()).map(|(name, _)| name.clone())
}

fn check_all(dir: &MemDir, model: &Model, rng: &mut Rng) {
    dir.check(model);
    for (name, &ino) in model {
        assert_eq!(dir.find(name), Some(ino));
    }
    for _ in 0..20 {
        let name = random_name(rng);
        assert_eq!(dir.find(&name), model.get(&name).copied());
    }
    assert_eq!(is_empty(dir, &dir.params()), Ok(model.is_empty()));
    assert_eq!(dotdot(dir, &dir.params()), Ok(InodeNr(2)));
}

fn run(block_size: usize, base: DirParams, seed: u64, steps: u64) {
    let mut rng = Rng::new(seed);
    let dir = MemDir::new(block_size, base);
    let mut model = Model::new();
    let mut growing = true;
    for step in 0..steps {
        if step % (steps / 3).max(1) == 0 {
            growing = step == 0 || rng.one_in(2);
        }
        if rng.one_in(4) == growing {
            if let Some(name) = pick(&mut rng, &model) {
                let found = dir.remove(&name).unwrap();
                assert_eq!(Some(found.ino.0), model.remove(&name));
                assert_eq!(dir.find(&name), None);
            }
        } else {
            let (name, ino) = (random_name(&mut rng), 1 + rng.below(9999) as u32);
            if let Entry::Vacant(free) = model.entry(name.clone()) {
                dir.add(&name, ino).unwrap();
                free.insert(ino);
            } else if dir.blocks() == 1 {
                assert_eq!(dir.add(&name, ino), Err(StoreError::Dir(DirError::Exists { lblk: 0 })));
            }
        }
        if step % (steps / 4).max(1) == 0 {
            check_all(&dir, &model, &mut rng);
        }
    }
    check_all(&dir, &model, &mut rng);
    for batch in [1, 7, 1000] {
        let listed = dir.list(batch);
        assert_eq!(listed.len(), model.len());
        assert_eq!(listed.into_iter().collect::<Model>(), model);
    }
}

fn any_version() -> impl Strategy<Value = HashVersion> {
    prop::sample::select(HashVersion::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn agrees_with_model(
        block_size in prop_oneof![Just(1024usize), Just(2048), Just(4096)],
        csum: bool,
        filetype: bool,
        dir_index: bool,
        version in any_version(),
        seed: u64,
        steps in 1u64..3000,
    ) {
        run(block_size, DirParams { has_filetype: filetype, ..params(csum, dir_index, version) }, seed, steps);
    }

    #[test]
    fn agrees_with_model_when_names_collide(
        csum: bool,
        version in any_version(),
        bits in prop_oneof![Just(0u32), Just(0x8000_0000), Just(0x3000_0000), Just(0xFF00)],
        seed: u64,
        steps in 1u64..2000,
    ) {
        let _collisions = Collisions::keep(bits, u32::MAX);
        run(1024, params(csum, true, version), seed, steps);
    }

    #[test]
    fn agrees_with_model_when_cookies_collide(seed: u64, version in any_version(), steps in 1u64..1000) {
        let _collisions = Collisions::keep(0x7000_0000, 1);
        run(1024, params(true, true, version), seed, steps);
    }

    #[test]
    fn listing_survives_changes(
        block_size in prop_oneof![Just(1024usize), Just(4096)],
        dir_index: bool,
        collide in prop_oneof![Just((u32::MAX, u32::MAX)), Just((0xF000_0000, u32::MAX)), Just((0xF000_0000, 0xC000_0000))],
        batch in 1usize..6,
        start in 0usize..400,
        seed: u64,
    ) {
        let _collisions = Collisions::keep(collide.0, collide.1);
        let mut rng = Rng::new(seed);
        let dir = MemDir::new(block_size, params(true, dir_index, HashVersion::HalfMd4));
        let mut model = Model::new();
        let add_one = |model: &mut Model, rng: &mut Rng| {
            let name = random_name(rng);
            if let Entry::Vacant(free) = model.entry(name) {
                dir.add(free.key(), 77).unwrap();
                free.insert(77);
            }
        };
        for _ in 0..start {
            add_one(&mut model, &mut rng);
        }
        let mut untouched: BTreeSet<Vec<u8>> = model.keys().cloned().collect();
        let mut seen = BTreeSet::new();
        let mut cookie = 0;
        for _ in 0..2000 {
            let (page, next) = dir.page(cookie, batch);
            if page.is_empty() {
                break;
            }
            cookie = next;
            for (name, _) in page {
                prop_assert!(seen.insert(name), "listed twice");
            }
            for _ in 0..rng.below(6) {
                if rng.one_in(2) {
                    add_one(&mut model, &mut rng);
                } else if let Some(name) = pick(&mut rng, &model) {
                    dir.remove(&name).unwrap();
                    model.remove(&name);
                    untouched.remove(&name);
                    // After a removal and a new addition, the name may be listed again: it is another entry.
                    seen.remove(&name);
                }
            }
        }
        prop_assert!(untouched.iter().all(|name| seen.contains(name)), "a name that was always there is missing");
        dir.check(&model);
    }

    #[test]
    fn no_space_leaves_the_directory_whole(seed: u64, csum: bool, dir_index: bool, collide: bool) {
        let _collisions = Collisions::keep(if collide { 0xC000_0000 } else { u32::MAX }, u32::MAX);
        let mut rng = Rng::new(seed);
        let dir = MemDir::new(1024, params(csum, dir_index, HashVersion::Tea));
        let mut model = Model::new();
        for _ in 0..600 {
            dir.room.set(rng.below(3) as u32);
            let name = random_name(&mut rng);
            if model.contains_key(&name) {
                continue;
            }
            match dir.add(&name, 5) {
                Ok(_) => { model.insert(name, 5); }
                Err(StoreError::NoSpace) => dir.check(&model),
                Err(other) => panic!("{other:?}"),
            }
        }
        check_all(&dir, &model, &mut rng);
        prop_assert_eq!(dir.list(10).len(), model.len());
    }
}

/// Removing the names of each page of a listing must empty the directory, as `rm -r` does.
#[test]
fn listing_and_removing_empties_the_directory() {
    for (size, dir_index, version) in
        [(1024, true, HashVersion::HalfMd4), (4096, true, HashVersion::Legacy), (1024, false, HashVersion::Tea)]
    {
        let dir = MemDir::new(size, params(true, dir_index, version));
        for n in 0..3000 {
            dir.add(format!("file{n}").as_bytes(), 50).unwrap();
        }
        assert_eq!(dir.params().is_indexed, dir_index);
        let mut cookie = 0;
        loop {
            let (page, next) = dir.page(cookie, 13);
            if page.is_empty() {
                break;
            }
            cookie = next;
            for (name, _) in page.iter().filter(|(name, _)| !name.starts_with(b".")) {
                dir.remove(name).unwrap();
            }
        }
        assert_eq!(is_empty(&dir, &dir.params()), Ok(true));
    }
}

/// More names than a batch, all with one hash: memory is bounded and the listing is exact.
#[test]
fn a_listing_is_exact_when_all_names_share_one_hash() {
    let _collisions = Collisions::keep(0, u32::MAX);
    let dir = MemDir::new(4096, params(false, true, HashVersion::HalfMd4));
    let mut model = Model::new();
    for n in 0..40_000u32 {
        let name = format!("{n}").into_bytes();
        dir.add(&name, n + 11).unwrap();
        model.insert(name, n + 11);
    }
    for batch in [5000, 100_000] {
        let listed = dir.list(batch);
        assert_eq!((listed.len(), listed.into_iter().collect::<Model>()), (model.len(), model.clone()));
    }
    assert_eq!(dir.find(b"39999"), Some(40010));
    assert_eq!(dir.find(b"40000"), None);
}

#[test]
fn index_grows_to_its_last_level_and_then_fails_with_full() {
    let name = |n: u32| format!("{n:0>255}").into_bytes();
    for (large_dir, has_csum) in [(false, true), (true, false)] {
        let base = DirParams { has_large_dir: large_dir, ..params(has_csum, true, HashVersion::HalfMd4) };
        let dir = MemDir::new(1024, base);
        let mut count = 0;
        let error = loop {
            match dir.add(&name(count), count + 11) {
                Ok(_) => count += 1,
                Err(error) => break Some(error),
            }
            if large_dir && count == 60_000 {
                break None;
            }
        };
        let (info, _) = base.dx_format().root(&dir.blocks.borrow()[0]).unwrap();
        if large_dir {
            assert_eq!((info.indirect_levels, &error), (2, &None));
        } else {
            assert!(matches!(error, Some(StoreError::Dir(DirError::Full { .. }))), "{error:?}");
            assert!(info.indirect_levels == 1 && count > 15_000, "{count}");
            assert_eq!(dir.find(&name(count)), None);
        }
        dir.check(&(0..count).map(|n| (name(n), n + 11)).collect());
        for n in (0..count).step_by(97) {
            assert_eq!(dir.find(&name(n)), Some(n + 11));
        }
        assert_eq!(dir.list(1000).len(), count as usize);
    }
}

#[test]
fn cookies_survive_the_conversion_to_a_tree() {
    let dir = MemDir::new(1024, params(true, true, HashVersion::HalfMd4));
    let mut n = 0;
    let mut grow = |until: u32| {
        while dir.blocks() < until {
            dir.add(format!("name-{n}").as_bytes(), 50).unwrap();
            n += 1;
        }
        n
    };
    for n in 0..30 {
        dir.add(format!("early{n}").as_bytes(), 60).unwrap();
    }
    assert_eq!(dir.blocks(), 1);
    let (mut seen, cookie) = dir.page(0, 12);
    grow(8);
    assert!(dir.params().is_indexed);
    seen.extend(dir.page(cookie, usize::MAX).0);
    let early: Vec<_> = seen.iter().filter(|(name, _)| name.starts_with(b"early")).collect();
    assert_eq!(early.len(), 30);
    assert_eq!(early.iter().collect::<BTreeSet<_>>().len(), 30);
    assert_eq!(dir.page(COOKIE_END, 10), (Vec::new(), COOKIE_END));
}

#[test]
fn entries_are_redirected_in_place() {
    for count in [3, 500] {
        let dir = MemDir::new(1024, params(true, true, HashVersion::TeaUnsigned));
        for n in 0..count {
            dir.add(format!("f{n}").as_bytes(), 50).unwrap();
        }
        let params = dir.params();
        let found = lookup(&dir, &params, b"f1").unwrap().unwrap();
        set_inode(&dir, &mut (), &params, &found, InodeNr(99), Some(FileType::Symlink)).unwrap();
        let again = lookup(&dir, &params, b"f1").unwrap().unwrap();
        assert_eq!((again.ino, again.file_type), (InodeNr(99), Some(FileType::Symlink)));
        let stale = set_inode(&dir, &mut (), &params, &found, InodeNr(98), Some(FileType::Regular));
        assert_eq!(stale, Err(StoreError::Dir(DirError::NotFound)));
        set_dotdot(&dir, &mut (), &params, InodeNr(77)).unwrap();
        assert_eq!((dotdot(&dir, &params), dir.find(b"..")), (Ok(InodeNr(77)), Some(77)));
        assert_eq!(dir.find(b"."), Some(12));
        assert_eq!(dir.remove(b"nobody"), Err(StoreError::Dir(DirError::NotFound)));
        assert_eq!(remove(&dir, &mut (), &params, b"f1", Some(&again)), Ok(again));
        let hint = Some(&again);
        assert_eq!(remove(&dir, &mut (), &params, b"f2", hint).map(|found| found.ino), Ok(InodeNr(50)));
        for bad in [&b""[..], b".", b"..", b"a/b", &[b'x'; 256]] {
            assert!(matches!(dir.add(bad, 5), Err(StoreError::Dir(DirError::InvalidName { .. }))));
        }
    }
}

#[test]
fn a_lookup_in_a_tree_reads_one_block_per_level() {
    let dir = MemDir::new(1024, params(true, true, HashVersion::HalfMd4));
    for n in 0..10_000 {
        dir.add(format!("file{n}").as_bytes(), 50).unwrap();
    }
    let before = dir.reads.get();
    for n in 0..20_000 {
        assert_eq!(dir.find(format!("file{n}").as_bytes()).is_some(), n < 10_000);
    }
    assert_eq!(dir.reads.get() - before, 3 * 20_000);
}

#[test]
fn additions_stay_within_their_credits() {
    for dir_index in [true, false] {
        let dir = MemDir::new(1024, params(false, dir_index, HashVersion::HalfMd4));
        for n in 0..8000 {
            let credits = credits_for_add(&dir.params(), dir.blocks());
            let before = dir.blocks.borrow().clone();
            dir.add(format!("{n:0>100}").as_bytes(), 50).unwrap();
            if dir.blocks() as usize > before.len() || n % 100 == 0 {
                let after = dir.blocks.borrow();
                let appended = (after.len() - before.len()) as u32;
                let changed = before.iter().zip(after.iter()).filter(|(a, b)| a != b).count() as u32;
                assert!(appended <= credits.appended && appended + changed <= credits.blocks);
            }
        }
    }
}
