//! An acker over `hashbrown::HashMap` with its own hasher: one map for all buckets, as hash_maps.cpp beside it.

use hashbrown::hash_map::{Entry, HashMap};
use std::slice::{from_raw_parts, from_raw_parts_mut};

const TRACK: i8 = 0;

#[derive(Default)]
struct Tree {
    ack_val: u64,
    message_id: i64,
    task_id: i32,
    /// The rotation in which it was new.
    begun: u16,
    tracked: bool,
}

pub struct Acker {
    buckets: u16,
    rotations: u16,
    trees: HashMap<u64, Tree>,
}

#[no_mangle]
pub extern "C" fn rival_new(buckets: usize) -> *mut Acker {
    Box::into_raw(Box::new(Acker { buckets: buckets as u16, rotations: 0, trees: HashMap::new() }))
}

/// # Safety
/// `acker` is from `rival_new`, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn rival_delete(acker: *mut Acker) {
    drop(Box::from_raw(acker));
}

/// # Safety
/// `acker` is from `rival_new`.
#[no_mangle]
pub unsafe extern "C" fn rival_bytes(acker: *const Acker) -> usize {
    (*acker).trees.allocation_size()
}

/// Returns how many trees expired.
///
/// # Safety
/// `acker` is from `rival_new`.
#[no_mangle]
pub unsafe extern "C" fn rival_rotate(acker: *mut Acker) -> usize {
    let acker = &mut *acker;
    acker.rotations = acker.rotations.wrapping_add(1);
    let (now, buckets) = (acker.rotations, acker.buckets);
    let mut expired = 0;
    acker.trees.retain(|_, tree| {
        let stays = now.wrapping_sub(tree.begun) < buckets;
        expired += (!stays && tree.tracked) as usize;
        stays
    });
    expired
}

/// Writes the finished trees and returns their number.
///
/// # Safety
/// `acker` is from `rival_new`; each column has `rows` items.
#[no_mangle]
pub unsafe extern "C" fn rival_ingest(
    acker: *mut Acker,
    rows: usize,
    kind: *const i8,
    root_id: *const u64,
    value: *const u64,
    task_id: *const i32,
    message_id: *const i64,
    done_root: *mut u64,
    done_message: *mut i64,
    done_task: *mut i32,
) -> usize {
    let acker = &mut *acker;
    let (kind, root_id, value) =
        (from_raw_parts(kind, rows), from_raw_parts(root_id, rows), from_raw_parts(value, rows));
    let (task_id, message_id) = (from_raw_parts(task_id, rows), from_raw_parts(message_id, rows));
    let (done_root, done_message, done_task) = (
        from_raw_parts_mut(done_root, rows),
        from_raw_parts_mut(done_message, rows),
        from_raw_parts_mut(done_task, rows),
    );
    let mut done = 0;
    for row in 0..rows {
        let mut entry = match acker.trees.entry(root_id[row]) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => entry.insert_entry(Tree { begun: acker.rotations, ..Tree::default() }),
        };
        let tree = entry.get_mut();
        if kind[row] == TRACK {
            if tree.tracked {
                continue;
            }
            tree.tracked = true;
            tree.task_id = task_id[row];
            tree.message_id = message_id[row];
        }
        tree.ack_val ^= value[row];
        if !tree.tracked || tree.ack_val != 0 {
            continue;
        }
        done_root[done] = root_id[row];
        done_message[done] = tree.message_id;
        done_task[done] = tree.task_id;
        done += 1;
        entry.remove();
    }
    done
}
