//! Where metadata goes in zones, when a zone lends blocks to data, and when they return to it.

use std::sync::Arc;

use extant_base::sim;
use extant_base::sync::atomic::Ordering;
use extant_base::task::spawn;
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use super::model::*;
use crate::{
    Allocator, Error, Geometry, GroupStore, InodePreallocation, MetaPolicy, MetaRequest, MetaRole, Options, Request,
    RequestFlags,
};

fn disk(geometry: Geometry) -> Arc<ModelStore> {
    Arc::new(ModelStore::new(geometry))
}

fn mount(store: &Arc<ModelStore>, meta_policy: MetaPolicy) -> Allocator<ModelStore> {
    allocator(store, Options { meta_policy, locality_groups: 1, stream_goals: 1, ..Options::default() })
}

/// A request for an indirect block of `owner`, whose data is at `data`.
fn indirect(owner: u32, data: u64) -> Request<'static> {
    let (role, data) = (MetaRole::Indirect, Some(BlockNr(data)));
    Request::meta(MetaRequest { role, owner: InodeNr(owner), home: None, parent: None, data }, 1)
}

fn take(a: &Allocator<ModelStore>, r: &Request<'_>) -> u64 {
    a.allocate(&mut Txn::default(), r).expect("space").start.0
}

/// Allocates all blocks that plain data can get, one run after the other.
fn fill(a: &Allocator<ModelStore>) -> Vec<(BlockNr, u32)> {
    let owner = InodePreallocation::new(InodeNr(999));
    std::iter::from_fn(|| {
        let r =
            Request { flags: RequestFlags::NO_PREALLOC, ..Request::data(&owner, None, LogicalBlock(0), 1000, 1000) };
        a.allocate(&mut Txn::default(), &r).ok().map(extent)
    })
    .collect()
}

#[test]
fn a_metacluster_is_a_128th_of_the_datas_group() {
    let places = [
        (MetaPolicy::Metacluster, &[16384][..]),
        (MetaPolicy::MetaclusterBegin, &[514]),
        (MetaPolicy::MetaclusterEnd, &[32512]),
        (MetaPolicy::MetaclusterFour, &[4096, 12288, 20480, 28672]),
    ];
    for (policy, places) in places {
        let store = disk(large(3, 1));
        let own = (0..3).map(|g| (BlockNr(g * 32768), 514));
        (0..3).for_each(|g| store.set(g, 0, 514, Block::Used));
        let mut a = mount(&store, policy);
        a.protect(own);
        let mut got: Vec<u64> = (0..256).map(|_| take(&a, &indirect(20, 40_000))).collect();
        got.sort_unstable();
        let len = 256 / places.len() as u64;
        let all: Vec<u64> = places.iter().flat_map(|at| at + 32768..at + 32768 + len).collect();
        assert_eq!(got, all, "{}", policy.name());
        // When the zone is full, metadata goes where it would without a zone.
        let next = take(&a, &indirect(20, 40_000));
        assert!((32768..65536).contains(&next) && !got.contains(&next), "{} {next}", policy.name());
        assert_eq!((a.statistics().zone_hits, a.statistics().zone_overflows), (256, 1));
        // Other metadata and data are not placed there.
        for role in [MetaRole::ExtentNode, MetaRole::Directory, MetaRole::Xattr, MetaRole::Symlink] {
            let meta = MetaRequest { role, owner: InodeNr(7), home: Some(BlockNr(0)), parent: None, data: None };
            let start = take(&a, &Request::meta(meta, 1));
            assert!(!all.contains(&(start + 32768)), "{} {role:?}", policy.name());
        }
        assert_eq!(a.statistics().zone_overflows, 1);
        assert_agrees(&a, &store);
    }
}

#[test]
fn a_zone_serves_all_groups_of_its_region_from_behind_the_system_metadata() {
    let store = disk(large(130, 1));
    store.set(0, 0, 600, Block::Used);
    let mut a = mount(&store, MetaPolicy::Zones);
    a.protect([(BlockNr(0), 600)]);
    // Blocks for the same group are together, in pages of 64 blocks.
    for round in 0..3 {
        for i in 0..100 {
            let at = take(&a, &indirect(20 + i + 1000 * round, u64::from(i) * 32768 + 5));
            let page = if i == 0 { 600 } else { u64::from(i - 1) * 64 + 640 };
            assert_eq!(at, page + u64::from(round), "group {i}");
        }
    }
    let beyond = take(&a, &indirect(20, 129 * 32768));
    assert_eq!(beyond, 128 * 32768, "another region");
    let node = MetaRequest {
        role: MetaRole::ExtentNode,
        owner: InodeNr(5),
        home: Some(BlockNr(77 * 32768)),
        parent: None,
        data: None,
    };
    assert_eq!(take(&a, &Request::meta(node, 1)), 76 * 64 + 643);
    // A directory is placed there only under `zones-all`.
    let directory = Request::meta(MetaRequest { role: MetaRole::Directory, ..node }, 1);
    assert_eq!(take(&a, &directory), 77 * 32768);
    let a = mount(&store, MetaPolicy::ZonesAll);
    assert_eq!(take(&a, &directory), 603, "a mount forgets the owners of pages, and the first page has room");
}

/// The number of blocks that do not directly follow the previous one.
fn breaks(blocks: &[u64]) -> usize {
    blocks.windows(2).filter(|w| w[1] != w[0] + 1).count()
}

#[test]
fn files_that_grow_together_do_not_interleave() {
    let store = disk(large(2, 1));
    let a = mount(&store, MetaPolicy::Zones);
    let mut of = vec![Vec::new(); 8];
    for _ in 0..64 {
        for (i, blocks) in of.iter_mut().enumerate() {
            blocks.push(take(&a, &indirect(20 + i as u32, 100)));
        }
    }
    // A file with few blocks fills gaps; from the eighth block on, it continues in its own windows.
    for blocks in &of {
        assert!(breaks(&blocks[8..]) <= 4, "{blocks:?}");
    }
    let mut all: Vec<u64> = of.concat();
    all.sort_unstable();
    assert!(all[all.len() - 1] - all[0] < 640, "the used blocks are dense");
    // Files of one block each fill the gaps between.
    for i in 0..100 {
        let at = take(&a, &indirect(1000 + i, 100));
        assert!(at - all[0] < 640, "{at}");
    }
}

#[test]
fn small_files_leave_the_window_of_a_file_that_grows() {
    let store = disk(large(2, 1));
    let a = mount(&store, MetaPolicy::Zones);
    let mut large: Vec<u64> = (0..24).map(|_| take(&a, &indirect(20, 100))).collect();
    for small in 0..64 {
        take(&a, &indirect(1000 + small, 100));
        large.push(take(&a, &indirect(20, 100)));
    }
    // At the end of a window, and nowhere else.
    assert!(breaks(&large[8..]) <= 80 / 16, "{large:?}");
    assert_agrees(&a, &store);
}

#[test]
fn a_zone_grows_before_it_is_full() {
    let store = disk(large(4, 1));
    let a = mount(&store, MetaPolicy::Zones);
    let blocks: Vec<u64> = (0..20_000).map(|i| take(&a, &indirect(20 + i, 4 * 32768 - 1))).collect();
    // Half of a group, then half of the next.
    assert_eq!(blocks[..16_384], (0..16_384).collect::<Vec<u64>>());
    assert_eq!(blocks[16_384..], (32_768..32_768 + 20_000 - 16_384).collect::<Vec<u64>>());
    let s = a.statistics();
    assert_eq!((s.zone_hits, s.zone_overflows, s.zone_areas_grown), (20_000, 0, 10));
    assert!((1024..=1024 + 2048).contains(&a.set_aside_blocks()), "{}", a.set_aside_blocks());
    assert_agrees(&a, &store);
}

#[test]
fn a_zone_grows_before_groups_share_a_page() {
    let store = disk(large(128, 1));
    let a = mount(&store, MetaPolicy::Zones);
    // 700 pages, of which the zone has 256 at mount.
    let mut homes = vec![std::collections::BTreeSet::new(); 4096];
    for file in 0..44_800u64 {
        let group = file % 100;
        homes[take(&a, &indirect(20 + file as u32, group * 32_768 + 32_767)) as usize / 64].insert(group);
    }
    assert!(homes.iter().all(|groups| groups.len() <= 1), "{homes:?}");
    assert!(a.set_aside_blocks() <= 16_384, "as much as at mount: {}", a.set_aside_blocks());
    assert_eq!(a.statistics().zone_overflows, 0);
    assert_agrees(&a, &store);
}

#[test]
fn a_zone_with_as_much_free_as_it_may_have_does_not_grow_for_a_page() {
    let store = disk(large(40, 1));
    let a = mount(&store, MetaPolicy::Zones);
    let (mut pages, mut used) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    let mut owner = 20;
    let mut take_for = |group: u64, used: &mut std::collections::BTreeSet<u64>| {
        owner += 1;
        let at = take(&a, &indirect(owner, group * 32_768 + 32_767));
        pages.insert(at / 64);
        used.insert(at);
        (at / 64, pages.len() as u64)
    };
    // Frees blocks up to the zone's limit of free blocks.
    let refill = |used: &mut std::collections::BTreeSet<u64>| {
        while a.set_aside_blocks() < 8192 {
            let at = used.iter().copied().find(|at| at % 64 > 0).expect("something is used");
            used.remove(&at);
            free_now(&a, &store, (BlockNr(at), 1));
        }
    };
    (0..288 * 64).for_each(|i| _ = take_for(i % 36, &mut used));
    refill(&mut used);
    // Another group takes the pages without an owner.
    let all = || (3 + a.statistics().zone_areas_grown) * 32;
    let mut owned = 0;
    while owned < all() {
        owned = take_for(37, &mut used).1;
    }
    refill(&mut used);
    let grown = a.statistics().zone_areas_grown;
    assert_eq!(take_for(38, &mut used).1, owned, "a page that has an owner");
    assert_eq!(a.statistics().zone_areas_grown, grown);
    assert_agrees(&a, &store);
}

/// A zone with all areas active leaves surplus blocks to data, and finds them again.
#[test]
fn a_zone_that_cannot_grow_takes_back_blocks_left_to_data() {
    let store = disk(large(1, 1));
    let a = mount(&store, MetaPolicy::Zones);
    (0..16_384).for_each(|i| _ = take(&a, &indirect(20 + i, 100)));
    assert_eq!(a.statistics().zone_overflows, 0);
    free_now(&a, &store, (BlockNr(0), 12_000));
    assert!(a.set_aside_blocks() < 12_000, "{}", a.set_aside_blocks());
    (0..12_000).for_each(|i| _ = take(&a, &indirect(20_000 + i, 100)));
    assert_eq!(a.statistics().zone_overflows, 0);
    assert_agrees(&a, &store);
}

#[test]
fn data_borrows_one_area_after_another_and_returns_them() {
    let store = disk(large(2, 1));
    let a = mount(&store, MetaPolicy::Zones);
    let mut maps: Vec<u64> = (0..3000).map(|i| take(&a, &indirect(20 + i, 100))).collect();
    assert_eq!(a.statistics().zone_areas_grown, 1);
    assert_eq!(a.set_aside_blocks(), 2 * 2048 - 3000);
    let rest = store.count(Block::Free) - a.set_aside_blocks();
    let owner = InodePreallocation::new(InodeNr(7));
    let one = Request { flags: RequestFlags::NO_PREALLOC, ..Request::data(&owner, None, LogicalBlock(0), 1, 1) };
    let mut data = Vec::new();
    for _ in 0..rest {
        data.push(take(&a, &one));
    }
    assert_eq!((a.statistics().zone_areas_lent, a.set_aside_blocks()), (0, 1096));
    assert_eq!(a.free_blocks(), 1096, "blocks set aside are free");
    // The next block comes from the last area.
    data.push(take(&a, &one));
    assert_eq!((a.statistics().zone_areas_lent, a.set_aside_blocks()), (1, 0));
    assert_eq!(data.last(), Some(&3000));
    for _ in 0..1095 {
        data.push(take(&a, &one));
    }
    let full = a.allocate(&mut Txn::default(), &one).expect_err("full");
    assert_eq!(full, TestError::Alloc(Error::NoSpace { wanted: 1 }));
    // Blocks of an area that is not lent go to metadata, not to data.
    let last = maps.remove(0);
    free_now(&a, &store, (BlockNr(last), 1));
    assert_eq!(a.set_aside_blocks(), 1);
    assert_eq!(take(&a, &indirect(9, 100)), last);
    // With space again, the lent area returns with its free blocks.
    let (lent, others): (Vec<u64>, Vec<u64>) = data.into_iter().partition(|&at| at < 4096);
    for at in others.into_iter().take(8000) {
        free_now(&a, &store, (BlockNr(at), 1));
    }
    for at in &lent[50..] {
        free_now(&a, &store, (BlockNr(*at), 1));
    }
    assert_eq!(a.set_aside_blocks(), 0);
    assert_eq!(take(&a, &indirect(10, 100)), lent[50]);
    assert_eq!(a.set_aside_blocks(), 1045);
    assert_agrees(&a, &store);
}

#[test]
fn data_waits_for_a_sufficient_commit_before_it_borrows() {
    let store = disk(large(2, 1));
    let a = mount(&store, MetaPolicy::Zones);
    // Enough for two areas.
    (0..1500).for_each(|i| _ = take(&a, &indirect(20 + i, 100)));
    let owner = InodePreallocation::new(InodeNr(7));
    let data = |len| Request {
        flags: RequestFlags::NO_PREALLOC,
        ..Request::data(&owner, None, LogicalBlock(0), len, u64::from(len))
    };
    let mut got = Vec::new();
    while store.count(Block::Free) > a.set_aside_blocks() {
        got.push(extent(a.allocate(&mut Txn::default(), &data(1000)).expect("space")));
    }
    let aside = a.set_aside_blocks();
    let mut free = |runs: usize| -> Vec<_> {
        let runs = got.drain(..runs).collect::<Vec<_>>();
        runs.iter()
            .flat_map(|(start, len)| a.free(&mut Txn::default(), *start, u64::from(*len)).expect("mine"))
            .collect()
    };
    let bring = |freed: Vec<(BlockNr, u32)>| {
        store.commit(&freed);
        a.release(&freed);
    };
    let pending = free(20);
    for _ in 0..8 {
        let waits = a.allocate(&mut Txn::default(), &data(1000)).expect_err("nothing is free");
        assert!(matches!(waits, TestError::Alloc(Error::NoSpaceUntilCommit { .. })), "{waits:?}");
    }
    assert_eq!((a.statistics().zone_areas_lent, a.set_aside_blocks()), (0, aside));
    bring(pending);
    while store.count(Block::Free) > a.set_aside_blocks() {
        take(&a, &data(1000));
    }
    assert_eq!(a.statistics().zone_areas_lent, 0);
    // Other requests took all blocks of a commit, and freed some more.
    let pending = free(10);
    take(&a, &data(1000));
    assert_eq!(a.statistics().zone_areas_lent, 1);
    bring(pending);
    while store.count(Block::Free) > a.set_aside_blocks() {
        take(&a, &data(1000));
    }
    // A commit would free too few blocks.
    let pending = free(1);
    take(&a, &data(5000));
    assert_eq!(a.statistics().zone_areas_lent, 2);
    bring(pending);
    assert_agrees(&a, &store);
}

/// A request examines an empty zone while a block returns to it. In every order, the next request gets that block.
#[test]
fn a_block_that_returns_to_an_empty_zone_is_found() {
    for seed in 0..300 {
        let outcome = sim::run(&sim::Options::new(seed), || {
            let store = disk(geometry(2, 1024, 0));
            // Behind the only area, too few blocks are free for another area.
            store.set(0, 104, 920, Block::Used);
            store.set(1, 0, 1024, Block::Used);
            let a = Arc::new(mount(&store, MetaPolicy::Zones));
            let maps: Vec<u64> = (0..64).map(|i| take(&a, &indirect(20 + i, 100))).collect();
            assert_eq!(a.set_aside_blocks(), 0);
            let freed = a.free(&mut Txn::default(), BlockNr(maps[7]), 1).expect("mine");
            store.commit(&freed);
            let looks = {
                let a = a.clone();
                spawn("looks", move || take(&a, &indirect(100, 100))).expect("thread")
            };
            a.release(&freed);
            let got = looks.join().expect("joined");
            (got == maps[7] || take(&a, &indirect(101, 100)) == maps[7], a.statistics().zone_areas_lent)
        });
        assert_eq!(outcome.result.expect("ends"), (true, 0), "seed {seed}");
    }
}

/// Each borrower gets one area, and no other area goes with it.
#[test]
fn two_concurrent_borrowers_get_one_area_each() {
    for seed in 0..100 {
        let outcome = sim::run(&sim::Options::new(seed), || {
            let store = disk(geometry(2, 1024, 0));
            let a = Arc::new(mount(&store, MetaPolicy::Zones));
            let maps: Vec<u64> = (0..150).map(|i| take(&a, &indirect(20 + i, 100))).collect();
            maps.into_iter().for_each(|at| free_now(&a, &store, (BlockNr(at), 1)));
            let owner = InodePreallocation::new(InodeNr(7));
            let data = |len| Request {
                flags: RequestFlags::NO_PREALLOC,
                ..Request::data(&owner, None, LogicalBlock(0), len, u64::from(len))
            };
            while store.count(Block::Free) > a.set_aside_blocks() {
                take(&a, &data(1000));
            }
            assert_eq!((a.set_aside_blocks(), a.statistics().zone_areas_lent), (3 * 64, 0));
            let other = {
                let a = a.clone();
                spawn("borrows", move || take(&a, &Request::metadata(None, 1))).expect("thread")
            };
            take(&a, &data(1));
            other.join().expect("joined");
            a.set_aside_blocks() + 64 * a.statistics().zone_areas_lent
        });
        assert_eq!(outcome.result.expect("ends"), 3 * 64, "seed {seed}");
    }
}

/// In a region full of data, a zone extends over all of it. Blocks that data frees there remain free for data, except
/// those that the zone needs. When the zone has used these, it continues with the rest.
#[test]
fn a_zone_in_a_region_full_of_data_does_not_collect_freed_blocks() {
    let store = disk(large(140, 1));
    (0..128).for_each(|g| store.set(g, 0, 32768, Block::Used));
    let a = mount(&store, MetaPolicy::Zones);
    (0..70).for_each(|i| _ = take(&a, &indirect(20 + i, 100)));
    free_now(&a, &store, (BlockNr(0), 4000));
    assert_eq!(a.group(GroupNr(0)).expect("group").set_aside, 4000, "it has few");
    for at in (4000..16_000).step_by(500) {
        free_now(&a, &store, (BlockNr(at), 500));
    }
    let group = a.group(GroupNr(0)).expect("group");
    assert!(group.free >= 6000 && group.set_aside >= 8000, "{group:?}");
    let overflows = a.statistics().zone_overflows;
    for i in 0..16_000 {
        let at = take(&a, &indirect(20 + i, 100));
        assert!(at < 16_000, "{at}");
    }
    assert_eq!(a.statistics().zone_overflows, overflows);
    assert_agrees(&a, &store);
}

/// A page is clipped where the zone begins in it. When the rest of it is free, the page has no owner.
#[test]
fn a_page_at_the_edge_of_a_zone_loses_its_owner() {
    let store = disk(large(4, 1));
    store.set(0, 0, 514, Block::Used);
    let mut a = mount(&store, MetaPolicy::Zones);
    a.protect([(BlockNr(0), 514)]);
    let first = take(&a, &indirect(20, 100));
    assert_eq!(first, 514);
    free_now(&a, &store, (BlockNr(first), 1));
    assert_eq!(take(&a, &indirect(30, 2 * 32768)), first);
}

#[test]
fn a_remount_finds_the_zone_from_its_used_blocks() {
    for policy in MetaPolicy::ALL.into_iter().filter(|p| p.state().zoning().is_some()) {
        let store = disk(large(4, 1));
        let a = mount(&store, policy);
        let before: Vec<u64> = (0..150).map(|i| take(&a, &indirect(20 + i, 100))).collect();
        let aside = a.set_aside_blocks();
        drop(a);
        let a = mount(&store, policy);
        // Data that is written first does not take the zone's place.
        let owner = InodePreallocation::new(InodeNr(7));
        let data = Request::data(&owner, Some(BlockNr(before[149])), LogicalBlock(0), 3000, 3000);
        let data = a.allocate(&mut Txn::default(), &data).expect("space");
        let next: Vec<u64> = (0..50).map(|i| take(&a, &indirect(300 + i, 100))).collect();
        assert!(!next.iter().any(|at| (data.start.0..data.start.0 + u64::from(data.len)).contains(at)));
        if policy != MetaPolicy::MetaclusterFour && policy != MetaPolicy::MetaclusterEnd {
            assert_eq!(next, (before[149] + 1..before[149] + 51).collect::<Vec<u64>>(), "{}", policy.name());
        }
        assert_eq!(a.set_aside_blocks(), aside - 50, "{}", policy.name());
        assert_eq!(a.statistics().zone_overflows, 0);
        a.discard_preallocations(&owner);
        assert_agrees(&a, &store);
    }
}

/// mke2fs places the journal of an ext3 image where the first areas would be. Those areas have no blocks, and the zone
/// begins behind the journal with as many blocks as it wants.
#[test]
fn a_zone_begins_behind_a_journal_with_as_many_blocks_as_elsewhere() {
    let store = disk(large(128, 1));
    store.set(0, 0, 20_000, Block::Used);
    let mut a = mount(&store, MetaPolicy::Zones);
    a.protect([(BlockNr(0), 20_000)]);
    let first = take(&a, &indirect(20, 100));
    assert_eq!(first, 20_000);
    // A 256th of the free blocks, in whole areas: some in the first group, then in the next.
    let wanted = store.count(Block::Free) / 256;
    assert!(a.set_aside_blocks() >= wanted - 2048, "{} of {wanted}", a.set_aside_blocks());
    let data = InodePreallocation::new(InodeNr(7));
    let data = Request::data(&data, Some(BlockNr(5)), LogicalBlock(0), 20, 20);
    assert_eq!(take(&a, &data), 32_768 + 4096);
}

/// Data is chosen long before it is mapped. It must not take blocks of a zone that have been free since the last mount.
#[test]
fn the_first_data_after_a_mount_spares_the_zone() {
    let mut store = ModelStore::new(large(4, 1));
    store.maps = 6000;
    let store = Arc::new(store);
    let a = mount(&store, MetaPolicy::Zones);
    let maps: Vec<u64> = (0..2500).map(|i| take(&a, &indirect(20 + i, 100))).collect();
    for at in maps.iter().skip(1000).step_by(2) {
        free_now(&a, &store, (BlockNr(*at), 1));
    }
    drop(a);
    let a = mount(&store, MetaPolicy::Zones);
    let owner = InodePreallocation::new(InodeNr(7));
    for i in 0..200 {
        let r = Request::data(&owner, Some(BlockNr(i * 10)), LogicalBlock(i as u32 * 50), 5, 10_000);
        assert!(take(&a, &r) >= 4096, "{i}");
    }
    assert_eq!(take(&a, &indirect(3000, 100)), maps[1000]);
}

/// A zone from an earlier mount has more used blocks than estimated. The first request for metadata restores the zone
/// before data gets its blocks.
#[test]
fn a_zone_larger_than_estimated_is_restored_at_the_first_request() {
    let store = disk(large(4, 1));
    // Small files have far more indirect blocks than if each block were full.
    store.set(0, 0, 9000, Block::Used);
    let a = mount(&store, MetaPolicy::Zones);
    assert_eq!(take(&a, &indirect(20, 100)), 9000);
    assert_eq!(a.set_aside_blocks(), 5 * 2048 - 9001);
    assert_agrees(&a, &store);
}

#[test]
fn an_unusable_group_loses_its_part_of_the_zone() {
    for policy in [MetaPolicy::Metacluster, MetaPolicy::Zones, MetaPolicy::ZonesAll] {
        // Before any of its blocks have been read.
        let store = disk(large(3, 1));
        store.fail_loads.store(0, Ordering::Relaxed);
        let a = mount(&store, policy);
        let at = take(&a, &indirect(20, 100));
        assert!(at >= 32768, "{}: {at}", policy.name());
        assert_eq!(store.damaged.load(Ordering::Relaxed), 1);
        // While some of its blocks are set aside.
        let store = disk(large(3, 1));
        let a = mount(&store, policy);
        let first = take(&a, &indirect(20, 100));
        store.set(0, 20_000, 1, Block::Used);
        a.drop_unused_buddies(usize::MAX);
        let free = store.count(Block::Free) - u64::from(store.free_in(0));
        let at = take(&a, &indirect(20, 100));
        assert!(first < 32768 && at >= 32768, "{}: {first}, {at}", policy.name());
        assert_eq!(a.statistics().groups_bad, 1);
        assert_eq!(a.group(GroupNr(0)).expect("group").set_aside, 0);
        assert_eq!(a.free_blocks(), free - 1, "{}", policy.name());
        let rest: u64 = fill(&a).iter().map(|x| u64::from(x.1)).sum();
        assert_eq!(rest, free - 1, "{}: all other blocks can be allocated", policy.name());
        assert_eq!(a.set_aside_blocks(), 0);
    }
}

/// The store refuses to mark blocks of the zone's group.
#[test]
fn blocks_that_cannot_be_marked_return_to_the_zone() {
    let store = disk(large(2, 1));
    let a = mount(&store, MetaPolicy::Zones);
    let aside = {
        take(&a, &indirect(20, 100));
        a.set_aside_blocks()
    };
    store.fail_marks.store(true, Ordering::Relaxed);
    assert_eq!(a.allocate(&mut Txn::default(), &indirect(21, 100)), Err(TestError::Io));
    store.fail_marks.store(false, Ordering::Relaxed);
    assert_eq!(a.set_aside_blocks(), aside);
    assert_agrees(&a, &store);
}

#[test]
fn trimming_visits_blocks_set_aside() {
    let store = disk(large(2, 1));
    let a = mount(&store, MetaPolicy::Zones);
    let used = take(&a, &indirect(20, 100));
    let mut seen = vec![false; 2 * 32768];
    let aside = a.set_aside_blocks();
    let mut beside = None;
    a.visit_free(BlockNr(0), 2 * 32768, 1, |start, len| {
        if start.0 < 2048 {
            // Meanwhile no block of the zone is left for other requests, which must not make it grow.
            beside = Some(take(&a, &indirect(21, 100)));
        }
        let run = &mut seen[start.0 as usize..start.0 as usize + len as usize];
        assert!(run.iter().all(|s| !s), "{start}: twice");
        run.fill(true);
        Ok::<_, ()>(())
    })
    .expect("visited");
    assert_eq!(seen.iter().position(|s| !s), Some(used as usize));
    assert_eq!(seen.iter().filter(|s| **s).count(), 2 * 32768 - 1);
    assert!(beside.is_some_and(|at| at >= 2048), "{beside:?}");
    assert_eq!((a.set_aside_blocks(), a.statistics().zone_areas_grown), (aside, 0));
    assert_agrees(&a, &store);
}

#[test]
fn a_request_with_a_limit_uses_and_borrows_no_zone_beyond_it() {
    let store = disk(large(4, 1));
    let a = mount(&store, MetaPolicy::Metacluster);
    let below = |r: Request<'static>| Request { max_block: Some(BlockNr(2 * 32768 - 1)), ..r };
    assert!(take(&a, &below(indirect(20, 3 * 32768 + 5))) < 2 * 32768);
    let mut got = 1;
    while let Ok(x) = a.allocate(&mut Txn::default(), &below(Request::metadata(Some(BlockNr(3 * 32768)), 500))) {
        assert!(x.start.0 + u64::from(x.len) <= 2 * 32768);
        got += u64::from(x.len);
    }
    assert_eq!(got, 2 * 32768, "also the blocks set aside");
    assert_eq!(a.statistics().zone_areas_lent, 2);
    let at = take(&a, &indirect(20, 3 * 32768 + 5));
    assert_eq!(at, 3 * 32768 + 16384);
    assert_agrees(&a, &store);
}

#[test]
fn a_goal_only_request_does_not_borrow() {
    let store = disk(large(1, 1));
    let a = mount(&store, MetaPolicy::Zones);
    take(&a, &indirect(20, 100));
    let here = Request { flags: RequestFlags::GOAL_ONLY, ..Request::metadata(Some(BlockNr(10)), 1) };
    assert!(a.allocate(&mut Txn::default(), &here).expect_err("set aside").no_space());
    assert_eq!(a.statistics().zone_areas_lent, 0);
}

/// Double frees, frees of free blocks and double releases are found in a zone, too.
#[test]
fn bad_frees_in_a_zone_are_found() {
    let store = disk(large(1, 1));
    let a = mount(&store, MetaPolicy::Zones);
    let at = BlockNr(take(&a, &indirect(20, 100)));
    let mut txn = Txn::default();
    assert!(a.is_known_free(BlockNr(at.0 + 1)) && !a.is_known_free(at));
    assert!(a.free(&mut txn, BlockNr(at.0 + 1), 1).is_err());
    assert_eq!(a.next_freeable(BlockNr(0), 2048).expect("read"), Some((at, 1)));
    let freed = a.free(&mut txn, at, 1).expect("used");
    assert!(a.free(&mut txn, at, 1).is_err());
    store.commit(&freed);
    a.release(&freed);
    assert!(a.free(&mut txn, at, 1).is_err());
    let aside = a.set_aside_blocks();
    a.release(&freed);
    assert_eq!((a.statistics().bad_releases, a.set_aside_blocks()), (1, aside));
}

/// System metadata becomes known after blocks were set aside.
#[test]
fn protected_blocks_leave_the_zone() {
    let store = disk(large(1, 1));
    let mut a = mount(&store, MetaPolicy::Zones);
    let first = take(&a, &indirect(20, 100));
    a.protect([(BlockNr(100), 50)]);
    let mut got = vec![first];
    while let Ok(x) = a.allocate(&mut Txn::default(), &indirect(20, 100)) {
        got.push(x.start.0);
    }
    assert_eq!(got.len(), 32768 - 50);
    assert!(!got.iter().any(|at| (100..150).contains(at)));
    assert!(store.load(GroupNr(0)).is_ok());
}
