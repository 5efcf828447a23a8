// A sharded acker: several ackers that divide the root ids among them, and the threads that apply a batch to all of
// them at once. Each thread reads the root ids of the whole batch and selects the rows of its own shards, so nothing is
// copied and only the batch is handed from thread to thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "ingest.h"
#include "memory.h"
#include "shard_of.h"
#include "workers.h"

namespace acker {

constexpr unsigned SHARDS_MAX = PARTS_MAX;

class ShardedCore {
  public:
    enum class Applied : int { all, none, unknown };

    // 1 <= threads <= shards <= SHARDS_MAX; `start` comes first.
    ShardedCore(unsigned shards, unsigned threads, std::chrono::microseconds spin_time = SPIN_TIME) noexcept
        : shard_of_(shards), count_(shards), workers_(threads, spin_time) {}
    ShardedCore(const ShardedCore&) = delete;
    ShardedCore& operator=(const ShardedCore&) = delete;

    ~ShardedCore() {
        for (unsigned s = 0; s < count_ && shards_ != nullptr; ++s) shards_[s].~Shard();
        release(shards_);
        release(lists_);
    }

    // False: no memory. high_water < 0: no limit.
    bool start(Protocol protocol, unsigned buckets, int64_t high_water, uint64_t seed, bool avx2) noexcept {
        lists_ = static_cast<uint32_t*>(acquire(count_ * LIST_ROWS * sizeof(uint32_t)));
        void* memory = acquire_aligned(count_ * sizeof(Shard), APART_BYTES);
        if (lists_ == nullptr || memory == nullptr) {
            release(memory);
            return false;
        }
        shards_ = static_cast<Shard*>(memory);
        for (unsigned s = 0; s < count_; ++s)
            cores_[s] = &(new (shards_ + s) Shard(protocol, buckets, high_water, seed, avx2))->core;
        high_water_ = high_water;
        divide_capacity();
        return true;
    }

    unsigned shards() const noexcept { return count_; }
    unsigned helpers() const noexcept { return workers_.helpers(); }
    AckerCore** cores() noexcept { return cores_; }
    AckerCore& shard_of(int64_t root_id) noexcept { return shards_[shard_of_(root_id)].core; }

    // Applies all of a batch, or none of it if there is not enough memory. `unknown`: memory ran out although all that
    // could be foreseen was reserved. Then some shards have applied their rows and others not, and the acker is
    // unusable.
    Applied ingest(const Messages& messages, int64_t now_ms) noexcept {
        for (unsigned s = 0; s < count_; ++s) shards_[s].core.finished.rows = 0;
        if (broken_) return Applied::unknown;
        if (!reserve_for(messages)) {
            give_back();
            return Applied::none;
        }
        std::atomic<bool> all{true};
        workers_.run([&](unsigned part) {
            if (!apply(part, messages, now_ms)) all.store(false, std::memory_order_relaxed);
        });
        for (unsigned s = 0; s < count_; ++s) shards_[s].core.arena.trim_reserve();
        divide_capacity();
        broken_ = !all.load(std::memory_order_relaxed);
        return broken_ ? Applied::unknown : Applied::all;
    }

    bool broken() const noexcept { return broken_; }

    // Reserves the memory that a batch needs in every shard.
    bool reserve_for(const Messages& messages) noexcept { return has_reserve(messages.rows) || reserve(messages); }

    size_t finished_rows() const noexcept {
        size_t rows = 0;
        for (unsigned s = 0; s < count_; ++s) rows += shards_[s].core.finished.rows;
        return rows;
    }

    // Writes the trees that the last batch finished, shard by shard, each in the order of its rows.
    void copy_finished(int64_t* roots, int64_t* messages, int32_t* tasks, int8_t* outcomes,
                       int64_t* elapsed) const noexcept {
        for (unsigned s = 0; s < count_; ++s) {
            const Finished& finished = shards_[s].core.finished;
            finished.copy_to(roots, messages, tasks, outcomes, elapsed);
            roots += finished.rows;
            messages += finished.rows;
            tasks += finished.rows;
            outcomes += finished.rows;
            elapsed += finished.rows;
        }
    }

    // The same in the columns of the first shard, which have room for them.
    Finished* gather_finished() noexcept {
        Finished& all = shards_[0].core.finished;
        for (unsigned s = 1; s < count_; ++s) {
            Finished& more = shards_[s].core.finished;
            size_t at = all.rows, room = all.capacity - at;
            if (more.rows > room) more.rows = room;  // a thread that writes to root ids meanwhile may lose trees
            more.copy_to(all.root_id + at, all.message_id + at, all.task_id + at, all.outcome + at,
                         all.elapsed_ms + at);
            all.rows += more.rows;
            more.rows = 0;
        }
        return &all;
    }

    // Drops the finished trees, and all memory beyond the need of usual batches.
    void give_back() noexcept {
        for (unsigned s = 0; s < count_; ++s) {
            shards_[s].core.finished.give_back();
            shards_[s].core.arena.trim_reserve();
        }
    }

    size_t expiring() const noexcept {
        int64_t rows = 0;
        for (unsigned s = 0; s < count_; ++s) rows += shards_[s].core.tracked_in(shards_[s].core.death_row());
        return static_cast<size_t>(rows);
    }

    // As AckerCore::rotate, into columns that have room for expiring() rows.
    void rotate(int64_t now_ms, int64_t* roots, int64_t* messages, int32_t* tasks, int64_t* elapsed) noexcept {
        each_at([](AckerCore& core) { return static_cast<size_t>(core.tracked_in(core.death_row())); },
                [&](AckerCore& core, size_t at) {
                    core.rotate(now_ms, roots + at, messages + at, tasks + at, elapsed + at);
                });
        divide_capacity();
    }

    // Calls visit(core, at) for every shard, on the threads; `at` is the sum of size(core) over the shards before it.
    template <typename Size, typename Visit>
    void each_at(const Size& size, const Visit& visit) noexcept {
        size_t at[SHARDS_MAX], sum = 0;
        for (unsigned s = 0; s < count_; ++s) {
            at[s] = sum;
            sum += size(shards_[s].core);
        }
        workers_.run([&](unsigned part) {
            for (unsigned s = part; s < count_; s += workers_.parts()) visit(shards_[s].core, at[s]);
        });
    }

    // Counts since creation, of all shards together.
    Counters counters() const noexcept {
        Counters sum = {};
        for (unsigned s = 0; s < count_; ++s) {
            const Counters& counters = shards_[s].core.counters;
            sum.tracked += counters.tracked;
            sum.acked += counters.acked;
            sum.failed += counters.failed;
            sum.timed_out += counters.timed_out;
            sum.rejected += counters.rejected;
            sum.duplicates += counters.duplicates;
            sum.unknown += counters.unknown;
            sum.orphans += counters.orphans;
            sum.dropped += counters.dropped;
            sum.resets += counters.resets;
            sum.empty += counters.empty;
        }
        return sum;
    }

    // Ends a restore: sets the counters of the snapshot whose entries the shards hold. The first shard gets them,
    // except that every shard counts its own open trees as tracked.
    void take_over(const Counters& counters) noexcept {
        int64_t elsewhere = open() - shards_[0].core.open();
        shards_[0].core.counters = counters;
        shards_[0].core.counters.tracked -= elsewhere;
        for (unsigned s = 1; s < count_; ++s) shards_[s].core.counters.tracked = shards_[s].core.open();
        divide_capacity();
    }

    int64_t open() const noexcept {
        int64_t open = 0;
        for (unsigned s = 0; s < count_; ++s) open += shards_[s].core.open();
        return open;
    }

    size_t count() const noexcept {
        size_t count = 0;
        for (unsigned s = 0; s < count_; ++s) count += shards_[s].core.arena.count();
        return count;
    }

    size_t bytes() const noexcept {
        size_t bytes = sizeof(ShardedCore) + count_ * (sizeof(Shard) + LIST_ROWS * sizeof(uint32_t));
        for (unsigned s = 0; s < count_; ++s) bytes += shards_[s].core.arena.bytes() + shards_[s].core.finished.bytes();
        return bytes;
    }

    int64_t probes() noexcept {
        int64_t probes = 0;
        for (unsigned s = 0; s < count_; ++s) probes += shards_[s].core.arena.probes();
        return probes;
    }

    // Returns whether all invariants hold, as they must between calls. For tests.
    bool check_invariants() noexcept {
        bool good = !broken_;
        for (unsigned s = 0; s < count_; ++s) {
            AckerCore& core = shards_[s].core;
            good = good && core.check_invariants() && core.nursery() == shards_[0].core.nursery();
            core.arena.each([&](uint64_t h, Ref, Cold*) {
                good = good && shard_of_(static_cast<int64_t>(core.arena.root_of(h))) == s;
                return good;
            });
        }
        return good;
    }

  private:
    // Rows that are selected at once: their numbers stay in the core's own cache until they are applied.
    static constexpr size_t LIST_ROWS = 1 << 14;

    struct alignas(APART_BYTES) Shard {
        AckerCore core;

        Shard(Protocol protocol, unsigned buckets, int64_t high_water, uint64_t seed, bool avx2) noexcept
            : core(protocol, buckets, high_water, seed, avx2) {}
    };

    // Whether every shard has memory for a batch of `rows`, even if it gets all of them.
    bool has_reserve(size_t rows) const noexcept {
        for (unsigned s = 0; s < count_; ++s)
            if (!shards_[s].core.has_reserve(rows)) return false;
        return true;
    }

    // Takes the memory for the rows that each shard will get. The first one has room for all that they finish: see
    // gather_finished.
    bool reserve(const Messages& messages) noexcept {
        std::atomic<bool> all{true};
        workers_.run([&](unsigned part) {
            size_t rows[SHARDS_MAX] = {};
            for (size_t row = 0; row < messages.rows; ++row) ++rows[shard_of_(messages.root_id[row])];
            for (unsigned s = part; s < count_; s += workers_.parts())
                if (!shards_[s].core.reserve(rows[s], s == 0 ? messages.rows : rows[s]))
                    all.store(false, std::memory_order_relaxed);
        });
        return all.load(std::memory_order_relaxed);
    }

    // Applies the rows of one thread's shards.
    bool apply(unsigned part, const Messages& messages, int64_t now_ms) noexcept {
        for (size_t first = 0; first < messages.rows; first += LIST_ROWS) {
            size_t rows = messages.rows - first < LIST_ROWS ? messages.rows - first : LIST_ROWS;
            size_t selected[SHARDS_MAX];
            select(part, messages.root_id + first, rows, selected);
            for (unsigned s = part; s < count_; s += workers_.parts()) {
                const int32_t* tasks = messages.task_id == nullptr ? nullptr : messages.task_id + first;
                const int64_t* ids = messages.message_id == nullptr ? nullptr : messages.message_id + first;
                Messages own{messages.kind + first,
                             messages.root_id + first,
                             messages.value + first,
                             tasks,
                             ids,
                             selected[s],
                             list(s)};
                if (shards_[s].core.ingest_more(own, now_ms) < selected[s]) return false;
            }
        }
        return true;
    }

    uint32_t* list(unsigned shard) const noexcept { return lists_ + shard * LIST_ROWS; }

    // Selects the rows of one thread's shards, in one pass over the root ids.
    void select(unsigned part, const int64_t* root_id, size_t rows, size_t* selected) const noexcept {
        if (part + workers_.parts() >= count_) {
            selected[part] = select_rows(shard_of_, root_id, rows, part, list(part), shards_[part].core.avx2());
            return;
        }
        uint32_t foreign;  // where the rows of other threads' shards go
        uint32_t* next[SHARDS_MAX];
        uint8_t step[SHARDS_MAX] = {};
        for (unsigned s = 0; s < count_; ++s) {
            step[s] = s % workers_.parts() == part;
            next[s] = step[s] != 0 ? list(s) : &foreign;
        }
        for (size_t row = 0; row < rows; ++row) {
            uint64_t s = shard_of_(root_id[row]);
            *next[s] = static_cast<uint32_t>(row);
            next[s] += step[s];
        }
        for (unsigned s = part; s < count_; s += workers_.parts()) selected[s] = static_cast<size_t>(next[s] - list(s));
    }

    // One acker with high_water h holds up to 2h + 1 open trees and 4h + 1 entries. The shards divide these limits
    // equally, each at least one. After a restore with another number of shards one may hold more than its part: it
    // keeps that, the others divide the rest, and the parts become even as its trees end.
    void divide_capacity() noexcept {
        if (high_water_ < 0) return;
        int64_t held[SHARDS_MAX], open_limits[SHARDS_MAX], held_limits[SHARDS_MAX];
        for (unsigned s = 0; s < count_; ++s) held[s] = shards_[s].core.open();
        divide(high_water_ * 2 + 1, held, open_limits);
        for (unsigned s = 0; s < count_; ++s) {
            AckerCore& core = shards_[s].core;
            held[s] = static_cast<int64_t>(core.arena.count()) - core.open();
        }
        divide(high_water_ * 4 + 1, held, held_limits);
        for (unsigned s = 0; s < count_; ++s) shards_[s].core.set_capacity(open_limits[s] - 1, held_limits[s] - 1);
    }

    void divide(int64_t total, const int64_t* held, int64_t* limits) const noexcept {
        unsigned sharing = count_;
        for (unsigned s = 0; s < count_; ++s) limits[s] = -1;  // not decided yet
        for (bool again = true; again;) {
            again = false;
            for (unsigned s = 0; s < count_; ++s) {
                if (limits[s] >= 0 || held[s] <= total / sharing) continue;
                limits[s] = held[s];
                total -= held[s];
                --sharing;
                again = true;
            }
        }
        int64_t left = sharing == 0 ? 0 : total % sharing;
        for (unsigned s = 0; s < count_; ++s)
            if (limits[s] < 0) limits[s] = total / sharing + (left-- > 0 ? 1 : 0);
    }

    ShardOf shard_of_;
    unsigned count_;
    Shard* shards_ = nullptr;
    AckerCore* cores_[SHARDS_MAX] = {};  // the same
    uint32_t* lists_ = nullptr;          // LIST_ROWS row numbers a shard
    int64_t high_water_ = -1;
    bool broken_ = false;
    Workers workers_;
};

}  // namespace acker
