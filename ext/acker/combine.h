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
#include "tree_index.h"
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
        return index_.nbytes() + hot_capacity_ * sizeof(Hot) + cold_capacity_ * sizeof(Cold) +
               when_capacity_ * sizeof(When);
    }

    // Adds messages chunk by chunk, each after reserving its memory; `*rows_applied` is the number of rows added. Kinds
    // and task ids are checked, but another thread may write to a column meanwhile: that must corrupt no memory.
    int add(const Messages& in, size_t* rows_applied) noexcept {
        const auto to_hot = [&](size_t row, Hot& hot) noexcept {
            const bool is_value = (VALUE_KINDS >> (in.kind[row] % KIND_CODES) & 1) != 0;
            hot.value ^= is_value ? static_cast<uint64_t>(in.value[row]) : 0;
            return !is_value;
        };
        const auto to_cold = [&](size_t row, Cold& cold) noexcept { apply_to_cold(in, row, cold); };
        return each_row(
            in, rows_applied, [&](size_t row) noexcept { return in.kind[row] != RESET_TIMEOUT || resets_; }, to_hot,
            to_cold);
    }

    // Adds the partials of other combiners, in the same way.
    int merge(const Partials& in, size_t* rows_applied) noexcept {
        const auto to_hot = [&](size_t row, Hot& hot) noexcept {
            hot.value ^= static_cast<uint64_t>(in.value[row]);
            return true;
        };
        const auto to_cold = [&](size_t row, Cold& cold) noexcept {
            if (in.flags[row] & HAS_TRACK) take_track(cold, in.track_value[row], in.task_id[row], in.message_id[row]);
            cold.flags |= in.flags[row] & (HAS_FAIL | HAS_RESET);
        };
        return each_row(in, rows_applied, [](size_t) noexcept { return true; }, to_hot, to_cold);
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

    static constexpr size_t CHUNK_ROWS = 512;
    static constexpr size_t INDEX_AHEAD = 24;  // rows between fetching an index line and applying
    static constexpr size_t TREE_AHEAD = 12;   // rows between fetching a tree and applying
    static constexpr size_t TREES_MAX = UINT32_MAX - CHUNK_ROWS;
    static constexpr unsigned VALUE_KINDS = 1u << ANCHOR | 1u << OK;

    size_t group_of(size_t tree, uint32_t shards) const noexcept {
        const Hot& hot = hot_[tree];
        const Cold& cold = cold_[tree];
        const bool is_open = (cold.flags != HAS_TRACK) | (hot.value != static_cast<uint64_t>(cold.track_value));
        return 2 * static_cast<size_t>(shard_of(static_cast<int64_t>(hot.root_id), shards)) + is_open;
    }

    // The hash of a root, and of its cohort where there are cohorts.
    template <bool TIMED>
    uint64_t key_hash(uint64_t root_id, int64_t cohort) const noexcept {
        return hash_.of(TIMED ? root_id ^ hash_.of(static_cast<uint64_t>(cohort)) : root_id);
    }

    // Calls `to_hot(row, hot)` for each row that `counts(row)`, and where that returns true `to_cold(row, cold)` when
    // the chunk of the row is done.
    template <class In, class Counts, class ToHot, class ToCold>
    int each_row(const In& in, size_t* rows_applied, Counts counts, ToHot to_hot, ToCold to_cold) noexcept {
        for (size_t first = 0; first < in.rows; first += CHUNK_ROWS) {
            const size_t rows = in.rows - first < CHUNK_ROWS ? in.rows - first : CHUNK_ROWS;
            if (!reserve(rows)) {
                *rows_applied = first;
                return NO_MEMORY;
            }
            if (timed_)
                each_row_of_chunk<true>(in, first, rows, counts, to_hot, to_cold);
            else
                each_row_of_chunk<false>(in, first, rows, counts, to_hot, to_cold);
        }
        *rows_applied = in.rows;
        return DONE;
    }

    template <bool TIMED, class In, class Counts, class ToHot, class ToCold>
    void each_row_of_chunk(const In& in, size_t first, size_t rows, Counts counts, ToHot to_hot,
                           ToCold to_cold) noexcept {
        // Each root id is read once: another thread may change the column, and tag and root have to agree.
        uint64_t roots[CHUNK_ROWS];
        uint32_t tags[CHUNK_ROWS + INDEX_AHEAD], cold_row[CHUNK_ROWS], cold_tree[CHUNK_ROWS];
        int64_t cohorts[TIMED ? CHUNK_ROWS : 1] = {0};
        for (size_t i = 0; i < rows; ++i) {
            if constexpr (TIMED) cohorts[i] = cohorts_.of(in.event_ms[first + i]);
            roots[i] = static_cast<uint64_t>(in.root_id[first + i]);
            tags[i] = TreeIndex::tag_of(key_hash<TIMED>(roots[i], cohorts[TIMED ? i : 0]));
        }
        for (size_t i = 0; i < INDEX_AHEAD; ++i) tags[rows + i] = tags[rows - 1];
        for (size_t i = 0; i < INDEX_AHEAD; ++i) index_.fetch(tags[i]);
        size_t listed = 0;
        for (size_t i = 0; i < rows; ++i) {
            index_.fetch(tags[i + INDEX_AHEAD]);
            ACKER_PREFETCH(&hot_[index_.guess(tags[i + TREE_AHEAD])]);
            const size_t row = first + i;
            if (!counts(row)) continue;
            const When when = TIMED ? When{cohorts[TIMED ? i : 0], in.event_ms[row]} : When{0, 0};
            const uint32_t tree = find_or_insert<TIMED>(tags[i], roots[i], when);
            cold_row[listed] = static_cast<uint32_t>(i);
            cold_tree[listed] = tree;
            listed += to_hot(row, hot_[tree]);
        }
        for (size_t i = 0; i < listed; ++i) {
            if (i + TREE_AHEAD < listed) ACKER_PREFETCH(&cold_[cold_tree[i + TREE_AHEAD]]);
            to_cold(first + cold_row[i], cold_[cold_tree[i]]);
        }
    }

    void apply_to_cold(const Messages& in, size_t row, Cold& cold) noexcept {
        switch (in.kind[row]) {
            case TRACK:
                take_track(cold, in.value[row], in.task_id == nullptr ? 0 : in.task_id[row],
                           in.message_id == nullptr ? 0 : in.message_id[row]);
                break;
            case FAIL: cold.flags |= HAS_FAIL; break;
            case RESET_TIMEOUT: cold.flags |= HAS_RESET; break;
            default: break;
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

    template <bool TIMED>
    uint32_t find_or_insert(uint32_t tag, uint64_t root_id, When when) noexcept {
        const uint32_t next = static_cast<uint32_t>(size_);
        const uint32_t tree = index_.find_or_insert(tag, next, [&](uint32_t position) noexcept {
            return hot_[position].root_id == root_id && (!TIMED || when_[position].cohort == when.cohort);
        });
        if (tree == next) {
            hot_[size_] = Hot{root_id, 0};
            cold_[size_] = Cold{0, 0, 0, 0};
            if constexpr (TIMED) when_[size_] = when;
            ++size_;
        }
        if constexpr (TIMED) {
            if (when.event_ms < when_[tree].event_ms) when_[tree].event_ms = when.event_ms;
        }
        return tree;
    }

    // Room for `more` new trees. False leaves the table as it was.
    bool reserve(size_t more) noexcept {
        const size_t trees = size_ + more;
        return trees <= TREES_MAX && enlarge(&hot_, &hot_capacity_, size_, trees) &&
               enlarge(&cold_, &cold_capacity_, size_, trees) &&
               (!timed_ || enlarge(&when_, &when_capacity_, size_, trees)) && index_.reserve(trees);
    }

    Hash hash_;
    TreeIndex index_;
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
