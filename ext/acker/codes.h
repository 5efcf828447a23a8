// Numbers and counters that the native core shares with Python: message kinds, outcomes, protocols, and the flags and
// states of entries. `_core.codes` returns them by name, and a test compares them with those of `acker._engine`.
#pragma once

#include <cstdint>

namespace acker {

// Message kinds (acker.Kind).
enum Kind : int8_t { TRACK = 0, ANCHOR = 1, OK = 2, FAIL = 3, RESET_TIMEOUT = 4 };
constexpr unsigned KINDS = 5;
constexpr unsigned KIND_CODES = 8;  // a kind that was not checked is masked to one of these

// How a tree ended (acker.Outcome).
enum Outcome : int8_t {
    OUTCOME_ACKED = 0,
    OUTCOME_FAILED = 1,
    OUTCOME_TIMED_OUT = 2,
    OUTCOME_REJECTED = 3,
    OUTCOME_PENDING = 4,  // reported by a batch only: the tree is still open at its end
};

// The rules that an acker follows (docs/protocol.md).
enum class Protocol : int { storm = 0, storm_09 = 1, fsshelter = 2 };

// The word of an entry in the arena: the low bits of its hash, flags, and the tag of its bucket.
constexpr unsigned HASH_BITS = 57;
constexpr uint64_t HASH_MASK = (uint64_t{1} << HASH_BITS) - 1;
constexpr uint64_t OVERFLOWED = uint64_t{1} << HASH_BITS;  // in all words of a line: an entry stands beyond it
constexpr unsigned STATE_SHIFT = 58;
constexpr uint64_t FAILED = uint64_t{1} << STATE_SHIFT;  // a FAIL came before the TRACK
constexpr uint64_t TRACKED = FAILED << 1;                // the TRACK came, so a spout task waits for the outcome
constexpr unsigned TAG_SHIFT = 60;
constexpr uint64_t TAGS = uint64_t{15} << TAG_SHIFT;
constexpr unsigned BUCKETS_MAX = 15;  // tags 1 to 15; tag 0: the slot is empty

// What a message finds: the word's FAILED and TRACKED bits read as a number, or no entry.
enum Found : unsigned { UNTRACKED_ENTRY = 0, FAILED_ENTRY = 1, TRACKED_ENTRY = 2, NO_ENTRY = 4 };
constexpr unsigned FOUND_BITS = 3;

// The state of an entry in a snapshot (docs/snapshot.md).
enum EntryState : uint8_t { ENTRY_UNTRACKED = 0, ENTRY_TRACKED = 1, ENTRY_FAILED = 2 };

// Which messages the partial of a root combines (acker._engine.combiner).
enum MessageFlag : uint8_t { HAS_TRACK = 1, HAS_FAIL = 2, HAS_RESET = 4 };

// Task ids of entries without a TRACK in a table of open trees (acker._engine.open_trees). An entry with the last one
// extends the time of its tree; event times alone make such an entry.
constexpr int32_t UNTRACKED = -1, UNTRACKED_FAILED = -2, UNTRACKED_RESET = -4;
constexpr int32_t VACANT = -3;  // marks a free position, and never leaves the table

// How often something happened since an acker was created; the names are those of acker.Stats.
struct Counters {
    int64_t tracked = 0, acked = 0, failed = 0, timed_out = 0, rejected = 0;
    int64_t duplicates = 0, unknown = 0, orphans = 0, dropped = 0, resets = 0, empty = 0;
};

// What an acker publishes after each call: its counters, then what it holds now.
struct Stats {
    Counters counters;
    int64_t pending = 0, open = 0, bytes = 0;
};
static_assert(sizeof(Stats) == sizeof(Counters) + 3 * sizeof(int64_t), "nothing but numbers of 64 bits");

}  // namespace acker
