// The last tuples that were acknowledged, so that a second acknowledgement of one is noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hash.h"
#include "memory.h"

namespace acker {

// A ring of the ids in their order, and an open-addressing index of positions in it with linear probing. When an id
// leaves the index, those behind it move up, so that no marks of removed ones gather.
class RecentIds {
  public:
    static constexpr size_t KEPT = 4096;

    RecentIds() noexcept = default;
    RecentIds(const RecentIds&) = delete;
    RecentIds& operator=(const RecentIds&) = delete;
    ~RecentIds() { release(tables_); }

    // Takes the memory, for the first `add`; false: there is none.
    bool start() noexcept {
        if (tables_ == nullptr) tables_ = static_cast<Tables*>(acquire_zeroed(sizeof(Tables)));
        return tables_ != nullptr;
    }

    bool contains(int64_t root_id, int64_t tuple_id) const noexcept {
        return tables_ != nullptr && tables_->position_of[find({root_id, tuple_id})] != 0;
    }

    // Adds an id that is not contained, in place of the oldest if there are KEPT.
    void add(int64_t root_id, int64_t tuple_id) noexcept {
        const size_t position = added_++ % KEPT;
        if (added_ > KEPT) remove(find(tables_->ring[position]));
        tables_->ring[position] = {root_id, tuple_id};
        tables_->position_of[find(tables_->ring[position])] = static_cast<uint16_t>(position + 1);
    }

  private:
    static constexpr size_t SLOTS_OF_INDEX = 2 * KEPT;

    struct Id {
        int64_t root_id, tuple_id;
    };

    struct Tables {
        Id ring[KEPT];
        uint16_t position_of[SLOTS_OF_INDEX];  // one more than the position in the ring; 0: empty
    };

    static size_t home(const Id& id) noexcept {
        uint64_t state = static_cast<uint64_t>(id.root_id);
        state = mix_seed(&state) ^ static_cast<uint64_t>(id.tuple_id);
        return mix_seed(&state) % SLOTS_OF_INDEX;
    }

    // The slot of the index that holds an id, or the empty one where it belongs.
    size_t find(const Id& id) const noexcept {
        size_t slot = home(id);
        while (const uint16_t position = tables_->position_of[slot]) {
            const Id& other = tables_->ring[position - 1];
            if (other.root_id == id.root_id && other.tuple_id == id.tuple_id) break;
            slot = (slot + 1) % SLOTS_OF_INDEX;
        }
        return slot;
    }

    void remove(size_t slot) noexcept {
        size_t next = slot;
        for (;;) {
            next = (next + 1) % SLOTS_OF_INDEX;
            const uint16_t position = tables_->position_of[next];
            if (position == 0) break;
            // What stands between its home and its slot may move up to the gap if that lies between them as well.
            const size_t way = (next - home(tables_->ring[position - 1])) % SLOTS_OF_INDEX;
            if (way < (next - slot) % SLOTS_OF_INDEX) continue;
            tables_->position_of[slot] = position;
            slot = next;
        }
        tables_->position_of[slot] = 0;
    }

    Tables* tables_ = nullptr;
    size_t added_ = 0;
};

}  // namespace acker
