// An acker over a hash map of a library: one map for all buckets, an entry for each open tree, which knows when it
// began. Rotate looks at all entries. No capacity, no statistics, no checks; kinds TRACK, ANCHOR and OK only.
#include <cstddef>
#include <cstdint>
#if defined(BOOST_FLAT_MAP)
#include <boost/unordered/unordered_flat_map.hpp>
#elif defined(UNORDERED_DENSE)
#include "vendor/ankerl/unordered_dense.h"
#else
#include <unordered_map>
#endif

namespace {

enum Kind : int8_t { TRACK, ANCHOR, OK };

struct Entry {
    uint64_t ack_val = 0;
    int64_t message_id = 0;
    int32_t task_id = 0;
    uint16_t begun = 0;  // the rotation in which it was new
    bool tracked = false;
};

#if defined(BOOST_FLAT_MAP)
using Map = boost::unordered_flat_map<uint64_t, Entry>;
#elif defined(UNORDERED_DENSE)
using Map = ankerl::unordered_dense::map<uint64_t, Entry>;
#else
using Map = std::unordered_map<uint64_t, Entry>;
#endif

struct Acker {
    size_t buckets;
    uint16_t rotations = 0;
    Map trees;
};

}  // namespace

extern "C" {

Acker* rival_new(size_t buckets) { return new Acker{buckets}; }

void rival_delete(Acker* acker) { delete acker; }

// What the map says of itself; nodes and control bytes are not in it.
size_t rival_bytes(const Acker* acker) {
#ifdef UNORDERED_DENSE
    return acker->trees.bucket_count() * sizeof(Map::bucket_type) +
           acker->trees.values().capacity() * sizeof(Map::value_type);
#else
    return acker->trees.bucket_count() * sizeof(Map::value_type);
#endif
}

// Returns how many trees expired.
size_t rival_rotate(Acker* acker) {
    size_t expired = 0;
    const uint16_t now = ++acker->rotations;
    for (auto entry = acker->trees.begin(); entry != acker->trees.end();) {
        if (static_cast<uint16_t>(now - entry->second.begun) < acker->buckets) {
            ++entry;
            continue;
        }
        expired += entry->second.tracked;
#ifdef UNORDERED_DENSE
        entry = acker->trees.erase(entry);  // It puts the last entry there.
#else
        acker->trees.erase(entry++);
#endif
    }
    return expired;
}

// Writes the finished trees and returns their number.
size_t rival_ingest(Acker* acker, size_t rows, const int8_t* kind, const uint64_t* root_id, const uint64_t* value,
                    const int32_t* task_id, const int64_t* message_id, uint64_t* done_root, int64_t* done_message,
                    int32_t* done_task) {
    size_t done = 0;
    for (size_t row = 0; row < rows; ++row) {
        auto [place, is_new] = acker->trees.try_emplace(root_id[row]);
        Entry& entry = place->second;
        if (is_new) entry.begun = acker->rotations;
        if (kind[row] == TRACK) {
            if (entry.tracked) continue;
            entry.tracked = true;
            entry.task_id = task_id[row];
            entry.message_id = message_id[row];
        }
        entry.ack_val ^= value[row];
        if (!entry.tracked || entry.ack_val != 0) continue;
        done_root[done] = root_id[row];
        done_message[done] = entry.message_id;
        done_task[done++] = entry.task_id;
        acker->trees.erase(place);
    }
    return done;
}
}
