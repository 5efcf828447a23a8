// What a snapshot reads from an acker and gives back to one: the entries, as columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ingest.h"

namespace acker {

// Age counts the rotations since an entry was in the nursery.
constexpr uint8_t ENTRY_UNTRACKED = 0, ENTRY_TRACKED = 1, ENTRY_FAILED = 2;
struct Entries {
    int64_t* root_id;
    int64_t* ack_val;
    int64_t* message_id;
    int32_t* task_id;
    uint32_t* start;
    uint8_t* state;
    uint8_t* age;
};

// Writes every entry into columns that have room for arena.count() rows.
inline void copy_out(AckerCore* core, const Entries& entries) noexcept {
    size_t row = 0;
    core->arena.each([&](uint64_t h, Ref ref, Cold* cold) {
        entries.root_id[row] = static_cast<int64_t>(core->arena.root_of(h));
        entries.ack_val[row] = static_cast<int64_t>(ref.val());
        entries.message_id[row] = cold->message_id;
        entries.task_id[row] = cold->task_id;
        entries.start[row] = cold->start;
        entries.state[row] = (ref.word() & TRACKED) != 0  ? ENTRY_TRACKED
                             : (ref.word() & FAILED) != 0 ? ENTRY_FAILED
                                                          : ENTRY_UNTRACKED;
        entries.age[row++] = static_cast<uint8_t>((core->nursery() + core->buckets() - ref.tag()) % core->buckets());
        return true;
    });
}

// Takes over checked entries with distinct root ids; returns how many memory allowed.
inline size_t put_back(AckerCore* core, const Entries& entries, size_t rows) noexcept {
    Arena& arena = core->arena;
    for (size_t row = 0; row < rows; ++row) {
        unsigned tag = (core->nursery() + 2 * core->buckets() - 1 - entries.age[row]) % core->buckets() + 1;
        uint64_t flags = static_cast<uint64_t>(tag) << TAG_SHIFT;
        flags |= entries.state[row] == ENTRY_TRACKED ? TRACKED : entries.state[row] == ENTRY_FAILED ? FAILED : 0;
        uint64_t h = arena.hash(static_cast<uint64_t>(entries.root_id[row]));
        Ref ref = arena.has_room(1) ? arena.place(h, flags) : Ref{};
        for (; !ref; ref = arena.place(h, flags))
            if (!arena.grow()) return row;
        ref.val() = static_cast<uint64_t>(entries.ack_val[row]);
        *arena.cold(ref) = Cold{entries.message_id[row], entries.task_id[row], entries.start[row]};
        core->count_in(flags);
    }
    return rows;
}

}  // namespace acker
