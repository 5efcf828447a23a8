// A table that combines the messages of each root as a set: xor of values, flags, and the TRACK of least rank. Spark
// uses it for its map-side combine and to merge the results. Order, buckets and clock do not matter, and no tree ends
// before `settle`. With event times it combines by root and cohort, and keeps the earliest time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codes.h"
#include "cohorts.h"
#include "columns.h"
#include "hash.h"
#include "memory.h"
#include "probe.h"
#include "xxh64.h"

namespace acker {

// The shard of a root. Not seeded: every worker of a job must agree, and so must the next release, since blocks may be
// stored. SplitMix64's output for the seed `root_id`, whose upper half is scaled to [0, shards).
inline uint32_t shard_of(int64_t root_id, uint32_t shards) noexcept {
    uint64_t state = static_cast<uint64_t>(root_id);
    return static_cast<uint32_t>(((mix_seed(&state) >> 32) * shards) >> 32);
}

class CombineTable {
  public:
    enum Code : int { DONE = 0, NO_MEMORY = 1 };

    CombineTable() noexcept = default;
    CombineTable(const CombineTable&) = delete;
    CombineTable& operator=(const CombineTable&) = delete;
    ~CombineTable() noexcept {
        release(index_);
        release(hot_);
        release(cold_);
        release(when_);
    }

    void seed(uint64_t seed) noexcept { hash_ = Hash::from_seed(seed); }

    // Whether a RESET_TIMEOUT makes its root known, for a caller that lets trees expire. Nothing expires in a set that
    // is settled once.
    void gather_resets(bool resets) noexcept { resets_ = resets; }

    // Combines by root and cohort. Call it while the table is empty.
    void gather_by(const Cohorts& cohorts) noexcept {
        cohorts_ = cohorts;
        timed_ = true;
    }

    size_t size() const noexcept { return size_; }
    // How many TRACKs came for roots that had one.
    uint64_t duplicates() const noexcept { return duplicates_; }
    size_t nbytes() const noexcept {
        return index_slots() * sizeof(uint32_t) + hot_capacity_ * sizeof(Hot) + cold_capacity_ * sizeof(Cold) +
               when_capacity_ * sizeof(When);
    }

    // Adds messages chunk by chunk, each after reserving its memory; `*rows_applied` is the number of rows added. Kinds
    // and task ids are checked, but another thread may write to a column meanwhile: that must corrupt no memory.
    int add(const Messages& in, size_t* rows_applied) noexcept {
        return each_row(in.root_id, in.event_ms, in.rows, rows_applied, [&](size_t row, uint64_t hash) noexcept {
            if (in.kind[row] == RESET_TIMEOUT && !resets_) return;
            apply_message(in, row, find_or_insert(hash, in.root_id, in.event_ms, row));
        });
    }

    // Adds the partials of other combiners, in the same way.
    int merge(const Partials& in, size_t* rows_applied) noexcept {
        return each_row(in.root_id, in.event_ms, in.rows, rows_applied, [&](size_t row, uint64_t hash) noexcept {
            const uint32_t position = find_or_insert(hash, in.root_id, in.event_ms, row);
            hot_[position].value ^= static_cast<uint64_t>(in.value[row]);
            Cold& cold = cold_[position];
            if (in.flags[row] & HAS_TRACK) take_track(cold, in.track_value[row], in.task_id[row], in.message_id[row]);
            cold.flags |= in.flags[row] & (HAS_FAIL | HAS_RESET);
        });
    }

    // Adds the number of trees of each group to `counts`, which the caller has zeroed. A shard has two groups, side by
    // side: first the trees that look finished and did not fail, of which a block says less, then the others.
    void count_groups(uint32_t shards, int64_t* counts) const noexcept {
        for (size_t i = 0; i < size_; ++i) ++counts[group_of(i, shards)];
    }

    // Writes every tree to row `next[group]++`: with the running sums of count_groups in `next`, the trees of a group
    // become neighbours, in the order of their first messages.
    void write_partials(uint32_t shards, int64_t* next, const PartialsOut& out) const noexcept {
        for (size_t i = 0; i < size_; ++i) {
            const Hot& hot = hot_[i];
            const Cold& cold = cold_[i];
            const int64_t row = next[group_of(i, shards)]++;
            out.root_id[row] = static_cast<int64_t>(hot.root_id);
            out.value[row] = static_cast<int64_t>(hot.value);
            out.flags[row] = static_cast<uint8_t>(cold.flags);
            out.track_value[row] = cold.track_value;
            out.task_id[row] = cold.task_id;
            out.message_id[row] = cold.message_id;
            if (timed_) out.event_ms[row] = when_[i].event_ms;
        }
    }

    // Writes the outcome of every tree that has one, in the order of first messages; returns how many. `out` has room
    // for size() rows. A tree without a TRACK has no outcome.
    size_t settle(bool include_pending, const Completions& out) const noexcept {
        size_t row = 0;
        for (size_t i = 0; i < size_; ++i) {
            const Cold& cold = cold_[i];
            const bool acked = hot_[i].value == static_cast<uint64_t>(cold.track_value);
            const bool failed = (cold.flags & HAS_FAIL) != 0;
            // Always written, kept by advancing `row`: a mix of outcomes costs no mispredicted branch.
            out.root_id[row] = static_cast<int64_t>(hot_[i].root_id);
            out.message_id[row] = cold.message_id;
            out.task_id[row] = cold.task_id;
            out.outcome[row] = acked ? OUTCOME_ACKED : failed ? OUTCOME_FAILED : OUTCOME_PENDING;
            row += static_cast<size_t>((cold.flags & HAS_TRACK) != 0) & (acked | failed | include_pending);
        }
        return row;
    }

  private:
    // Split so that an OK, the common message, touches 16 bytes of the tree.
    struct Hot {
        uint64_t root_id;
        uint64_t value;
    };
    struct Cold {
        int64_t track_value;
        int64_t message_id;
        int32_t task_id;
        uint32_t flags;
    };
    struct When {
        int64_t cohort;
        int64_t event_ms;  // the earliest
    };
    static_assert(sizeof(Hot) == 16 && sizeof(Cold) == 24, "a tree takes 40 bytes");

    static constexpr size_t CHUNK_ROWS = 1024;
    static constexpr size_t INDEX_AHEAD = 24;  // rows between fetching an index line and applying
    static constexpr size_t TREE_AHEAD = 12;   // rows between fetching a tree and applying
    static constexpr uint32_t EMPTY = UINT32_MAX;
    static constexpr size_t TREES_MAX = UINT32_MAX - CHUNK_ROWS;

    size_t group_of(size_t tree, uint32_t shards) const noexcept {
        const Hot& hot = hot_[tree];
        const Cold& cold = cold_[tree];
        const bool is_open = (cold.flags != HAS_TRACK) | (hot.value != static_cast<uint64_t>(cold.track_value));
        return 2 * static_cast<size_t>(shard_of(static_cast<int64_t>(hot.root_id), shards)) + is_open;
    }

    size_t index_slots() const noexcept { return index_ == nullptr ? 0 : index_mask_ + 1; }

    // The hash of a root, and of its cohort where there are cohorts.
    uint64_t key_hash(uint64_t root_id, int64_t cohort) const noexcept {
        return hash_.of(timed_ ? root_id ^ hash_.of(static_cast<uint64_t>(cohort)) : root_id);
    }

    template <class Apply>
    int each_row(const int64_t* root_id, const int64_t* event_ms, size_t rows, size_t* rows_applied,
                 Apply apply) noexcept {
        uint64_t hashes[CHUNK_ROWS + INDEX_AHEAD];
        for (size_t first = 0; first < rows; first += CHUNK_ROWS) {
            const size_t count = rows - first < CHUNK_ROWS ? rows - first : CHUNK_ROWS;
            if (!reserve(count)) {
                *rows_applied = first;
                return NO_MEMORY;
            }
            if (timed_) {
                for (size_t i = 0; i < count; ++i) {
                    hashes[i] = key_hash(static_cast<uint64_t>(root_id[first + i]), cohorts_.of(event_ms[first + i]));
                }
            } else {
                for (size_t i = 0; i < count; ++i) hashes[i] = hash_.of(static_cast<uint64_t>(root_id[first + i]));
            }
            for (size_t i = 0; i < INDEX_AHEAD; ++i) hashes[count + i] = hashes[count - 1];
            for (size_t i = 0; i < INDEX_AHEAD; ++i) ACKER_PREFETCH(&index_[hashes[i] & index_mask_]);
            for (size_t i = 0; i < count; ++i) {
                ACKER_PREFETCH(&index_[hashes[i + INDEX_AHEAD] & index_mask_]);
                const uint32_t guess = index_[hashes[i + TREE_AHEAD] & index_mask_];
                ACKER_PREFETCH(&hot_[guess == EMPTY ? size_ : guess]);
                apply(first + i, hashes[i]);
            }
        }
        *rows_applied = rows;
        return DONE;
    }

    void apply_message(const Messages& in, size_t row, uint32_t position) noexcept {
        switch (in.kind[row]) {
            case TRACK:
                take_track(cold_[position], in.value[row], in.task_id == nullptr ? 0 : in.task_id[row],
                           in.message_id == nullptr ? 0 : in.message_id[row]);
                break;
            case FAIL: cold_[position].flags |= HAS_FAIL; break;
            case RESET_TIMEOUT: cold_[position].flags |= HAS_RESET; break;
            default:  // ANCHOR and OK
                hot_[position].value ^= static_cast<uint64_t>(in.value[row]);
                break;
        }
    }

    // Of several TRACKs the one of least rank counts, whatever the order in which they come. The rank is one 64-bit
    // number because a Spark aggregate can hold that; different TRACKs share a rank with probability 2^-64, and never
    // if they differ in one column only.
    static int64_t rank_of(int64_t value, int32_t task_id, int64_t message_id) noexcept {
        return static_cast<int64_t>(static_cast<uint64_t>(value) ^ xxh64::of_int_and_long(task_id, message_id));
    }

    void take_track(Cold& cold, int64_t value, int32_t task_id, int64_t message_id) noexcept {
        if ((cold.flags & HAS_TRACK) != 0) {
            ++duplicates_;
            if (rank_of(value, task_id, message_id) >= rank_of(cold.track_value, cold.task_id, cold.message_id)) return;
        }
        cold.flags |= HAS_TRACK;
        cold.track_value = value;
        cold.task_id = task_id;
        cold.message_id = message_id;
    }

    uint32_t find_or_insert(uint64_t hash, const int64_t* root_ids, const int64_t* event_ms, size_t row) noexcept {
        const uint64_t root_id = static_cast<uint64_t>(root_ids[row]);
        const When when = timed_ ? When{cohorts_.of(event_ms[row]), event_ms[row]} : When{0, 0};
        for (size_t slot = hash & index_mask_;; slot = (slot + 1) & index_mask_) {
            const uint32_t position = index_[slot];
            if (position == EMPTY) {
                index_[slot] = static_cast<uint32_t>(size_);
                hot_[size_] = Hot{root_id, 0};
                cold_[size_] = Cold{0, 0, 0, 0};
                if (timed_) when_[size_] = when;
                return static_cast<uint32_t>(size_++);
            }
            if (hot_[position].root_id != root_id) continue;
            if (!timed_) return position;
            if (when_[position].cohort != when.cohort) continue;
            if (when.event_ms < when_[position].event_ms) when_[position].event_ms = when.event_ms;
            return position;
        }
    }

    // Room for `more` new trees at an index load of at most a half. False leaves the table as it was.
    bool reserve(size_t more) noexcept {
        const size_t trees = size_ + more;
        if (trees > TREES_MAX) return false;
        size_t slots = index_slots();
        if (slots == 0) slots = 2 * CHUNK_ROWS;
        while (slots < 2 * trees) slots *= 2;
        // One spare tree, so that a prefetch past the end is harmless.
        return enlarge(&hot_, &hot_capacity_, size_, trees + 1) && enlarge(&cold_, &cold_capacity_, size_, trees) &&
               (!timed_ || enlarge(&when_, &when_capacity_, size_, trees)) && grow_index(slots);
    }

    // Builds the new index beside the old one, which is released only then.
    bool grow_index(size_t slots) noexcept {
        if (slots == index_slots()) return true;
        uint32_t* index = static_cast<uint32_t*>(acquire(slots * sizeof(uint32_t)));
        if (index == nullptr) return false;
        std::memset(index, 0xFF, slots * sizeof(uint32_t));
        const size_t mask = slots - 1;
        for (size_t i = 0; i < size_; ++i) {
            size_t slot = key_hash(hot_[i].root_id, timed_ ? when_[i].cohort : 0) & mask;
            while (index[slot] != EMPTY) slot = (slot + 1) & mask;
            index[slot] = static_cast<uint32_t>(i);
        }
        release(index_);
        index_ = index;
        index_mask_ = mask;
        return true;
    }

    Hash hash_;
    uint32_t* index_ = nullptr;  // positions of trees, by hash; owned
    size_t index_mask_ = 0;
    Hot* hot_ = nullptr;  // trees in the order of their first messages; owned
    size_t hot_capacity_ = 0;
    Cold* cold_ = nullptr;
    size_t cold_capacity_ = 0;
    When* when_ = nullptr;  // where there are cohorts
    size_t when_capacity_ = 0;
    size_t size_ = 0;
    uint64_t duplicates_ = 0;
    bool resets_ = false;
    bool timed_ = false;
    Cohorts cohorts_;
};

}  // namespace acker
