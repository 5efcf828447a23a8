// The acker: applies batches of messages to the arena in row order, collects the trees they finish, and rotates.
//
// A batch runs in stretches of rows. For a stretch all hashes are computed first, so that the line of a row can be fetched
// while earlier rows are worked on. Cold parts are not touched on the way: what must happen there is put on a list
// and done a chunk of rows later, when the fetch has arrived. Rules: the acker protocol (docs/protocol.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "memory.h"

#if defined(_MSC_VER) && !defined(__clang__)
#include <xmmintrin.h>
#define ACKER_PREFETCH(address) _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0)
#else
#define ACKER_PREFETCH(address) __builtin_prefetch(address)
#endif

namespace acker {

enum Kind : int8_t { TRACK = 0, ANCHOR = 1, OK = 2, FAIL = 3, RESET_TIMEOUT = 4 };
constexpr int8_t KIND_LAST = RESET_TIMEOUT;

enum Outcome : int8_t { ACKED = 0, FAILED_TREE = 1, TIMED_OUT = 2, REJECTED = 3 };

enum class Protocol : int { storm = 0, storm_09 = 1, fsshelter = 2 };

constexpr size_t STRETCH_ROWS = 512;  // hashed together
constexpr size_t CHUNK_ROWS = 16;     // cold work waits for one chunk
constexpr size_t FETCH_AHEAD = 16;    // rows between the fetch of a line and its use
constexpr uint32_t ELAPSED_MS_MAX = 49u * 24 * 3600 * 1000;

// Milliseconds since a start tick. What looks like more than 49 days is a clock that was set back, and reads 0.
inline int64_t elapsed_ms(uint32_t start, uint32_t now) noexcept {
    uint32_t elapsed = now - start;
    return elapsed > ELAPSED_MS_MAX ? 0 : static_cast<int64_t>(elapsed);
}

// Checked columns of one length; a null task_id or message_id column reads 0.
struct Messages {
    const int8_t* kind;
    const int64_t* root_id;
    const int64_t* value;
    const int32_t* task_id;
    const int64_t* message_id;
    size_t rows;
};

struct Counters {
    int64_t tracked, acked, failed, timed_out, rejected, duplicates, unknown, orphans, dropped, resets;
};

// The columns of a snapshot's entries; age counts the rotations since an entry was in the nursery.
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

// Finished trees, in the order in which they finished. Owned here until the caller has copied them.
struct Finished {
    int64_t* root_id = nullptr;
    int64_t* message_id = nullptr;
    int64_t* elapsed_ms = nullptr;
    int32_t* task_id = nullptr;
    int8_t* outcome = nullptr;
    size_t rows = 0;
    size_t capacity = 0;
    static constexpr size_t CAPACITY_KEPT = 1 << 15;

    Finished() = default;
    Finished(const Finished&) = delete;
    Finished& operator=(const Finished&) = delete;
    ~Finished() { release(root_id); }

    // All five columns have room for `wanted` rows or, on false, are as they were.
    bool reserve(size_t wanted) noexcept {
        if (wanted <= capacity) return true;
        size_t enlarged = capacity * 2 > wanted ? capacity * 2 : wanted;
        size_t wide = whole_lines(enlarged * sizeof(int64_t)), narrow = whole_lines(enlarged * sizeof(int32_t));
        char* block = static_cast<char*>(acquire(3 * wide + narrow + enlarged));
        if (block == nullptr) return false;
        Finished fresh;
        fresh.root_id = reinterpret_cast<int64_t*>(block);
        fresh.message_id = reinterpret_cast<int64_t*>(block + wide);
        fresh.elapsed_ms = reinterpret_cast<int64_t*>(block + 2 * wide);
        fresh.task_id = reinterpret_cast<int32_t*>(block + 3 * wide);
        fresh.outcome = reinterpret_cast<int8_t*>(block + 3 * wide + narrow);
        copy_to(fresh.root_id, fresh.message_id, fresh.task_id, fresh.outcome, fresh.elapsed_ms);
        release(root_id);
        root_id = fresh.root_id;
        message_id = fresh.message_id;
        elapsed_ms = fresh.elapsed_ms;
        task_id = fresh.task_id;
        outcome = fresh.outcome;
        fresh.root_id = nullptr;
        capacity = enlarged;
        return true;
    }

    void copy_to(int64_t* roots, int64_t* messages, int32_t* tasks, int8_t* outcomes, int64_t* elapsed) const noexcept {
        if (rows == 0) return;
        std::memcpy(roots, root_id, rows * sizeof(int64_t));
        std::memcpy(messages, message_id, rows * sizeof(int64_t));
        std::memcpy(tasks, task_id, rows * sizeof(int32_t));
        std::memcpy(outcomes, outcome, rows);
        std::memcpy(elapsed, elapsed_ms, rows * sizeof(int64_t));
    }

    size_t bytes() const noexcept { return capacity * (3 * sizeof(int64_t) + sizeof(int32_t) + 1); }

    // Gives the block away; whoever takes it releases it.
    void* hand_over() noexcept {
        void* block = root_id;
        root_id = nullptr;
        rows = capacity = 0;
        return block;
    }

    // Forgets the rows; keeps the memory of a usual batch and returns that of a large one.
    void give_back() noexcept {
        rows = 0;
        if (capacity > CAPACITY_KEPT) release(hand_over());
    }
};

// The first row whose kind is unknown or whose task id is negative, or `rows` if all are good; `tracks` counts TRACKs.
inline size_t first_bad_row(const int8_t* kind, const int32_t* task_id, size_t rows, size_t* tracks) noexcept {
    size_t tracks_seen = 0;
    for (size_t start = 0; start < rows; start += STRETCH_ROWS) {
        size_t end = rows - start < STRETCH_ROWS ? rows : start + STRETCH_ROWS;
        uint8_t highest = 0;
        int32_t signs = 0;
        int32_t tracks_here = 0;
        for (size_t row = start; row < end; ++row) {
            uint8_t code = static_cast<uint8_t>(kind[row]);
            highest = code > highest ? code : highest;
            tracks_here += code == TRACK;
        }
        if (task_id != nullptr)
            for (size_t row = start; row < end; ++row) signs |= task_id[row];
        if (highest > static_cast<uint8_t>(KIND_LAST) || signs < 0) {
            for (size_t row = start; row < end; ++row)
                if (static_cast<uint8_t>(kind[row]) > KIND_LAST || (task_id != nullptr && task_id[row] < 0)) return row;
        }
        tracks_seen += static_cast<size_t>(tracks_here);
    }
    *tracks = tracks_seen;
    return rows;
}

class AckerCore {
  public:
    // high_water < 0: no limit.
    AckerCore(Protocol protocol, unsigned buckets, int64_t high_water, uint64_t seed) noexcept
        : arena(seed), buckets_(buckets), protocol_(protocol) {
        constexpr int64_t NEVER = INT64_MAX;
        open_max_ = high_water < 0 ? NEVER : (high_water > NEVER / 4 ? NEVER : high_water * 2);
        held_max_ = high_water < 0 ? NEVER : (high_water > NEVER / 4 ? NEVER : high_water * 4);
    }

    Arena arena;
    Finished finished;
    Counters counters = {};

    int64_t open() const noexcept { return open_; }
    unsigned buckets() const noexcept { return buckets_; }
    unsigned nursery() const noexcept { return nursery_; }
    unsigned death_row() const noexcept { return nursery_ % buckets_ + 1; }
    int64_t tracked_in(unsigned tag) const noexcept { return tracked_in_[tag]; }
    int64_t held_in(unsigned tag) const noexcept { return held_in_[tag]; }

    // Applies all rows, or as many leading ones as memory allows; returns how many. `finished` holds what they finished.
    size_t ingest(const Messages& messages, int64_t now_ms) noexcept {
        finished.rows = 0;
        uint32_t now = static_cast<uint32_t>(static_cast<uint64_t>(now_ms));
        switch (protocol_) {
            case Protocol::storm: return ingest_as<Protocol::storm>(messages, now);
            case Protocol::storm_09: return ingest_as<Protocol::storm_09>(messages, now);
            default: return ingest_as<Protocol::fsshelter>(messages, now);
        }
    }

    // Empties death row into the given columns, which have room for tracked_in(death_row()) rows; it becomes the nursery.
    void rotate(int64_t now_ms, int64_t* roots, int64_t* messages, int32_t* tasks, int64_t* elapsed) noexcept {
        unsigned tag = death_row();
        int64_t left = held_in_[tag], row = 0;
        uint32_t now = static_cast<uint32_t>(static_cast<uint64_t>(now_ms));
        if (left > 0) {
            arena.each([&](uint64_t h, Ref ref, Cold* cold) {
                if (ref.tag() != tag) return true;
                if ((ref.word() & TRACKED) != 0) {
                    roots[row] = static_cast<int64_t>(arena.root_of(h));
                    messages[row] = cold->message_id;
                    tasks[row] = cold->task_id;
                    elapsed[row++] = elapsed_ms(cold->start, now);
                }
                arena.erase(h, ref);
                return --left > 0;
            });
            open_ -= row;
            counters.timed_out += row;
            counters.orphans += held_in_[tag] - row;
            held_in_[tag] = tracked_in_[tag] = 0;
            arena.shrink();
        }
        nursery_ = tag;
    }

    // Writes every entry into columns that have room for arena.count() rows.
    void copy_out(const Entries& entries) noexcept {
        size_t row = 0;
        arena.each([&](uint64_t h, Ref ref, Cold* cold) {
            entries.root_id[row] = static_cast<int64_t>(arena.root_of(h));
            entries.ack_val[row] = static_cast<int64_t>(ref.val());
            entries.message_id[row] = cold->message_id;
            entries.task_id[row] = cold->task_id;
            entries.start[row] = cold->start;
            entries.state[row] = (ref.word() & TRACKED) != 0 ? ENTRY_TRACKED
                                 : (ref.word() & FAILED) != 0 ? ENTRY_FAILED
                                                              : ENTRY_UNTRACKED;
            entries.age[row++] = static_cast<uint8_t>((nursery_ + buckets_ - ref.tag()) % buckets_);
            return true;
        });
    }

    // Takes over checked entries with distinct root ids; returns how many memory allowed.
    size_t put_back(const Entries& entries, size_t rows) noexcept {
        for (size_t row = 0; row < rows; ++row) {
            bool tracked = entries.state[row] == ENTRY_TRACKED;
            unsigned tag = (nursery_ + 2 * buckets_ - 1 - entries.age[row]) % buckets_ + 1;
            uint64_t flags = static_cast<uint64_t>(tag) << TAG_SHIFT;
            flags |= tracked ? TRACKED : entries.state[row] == ENTRY_FAILED ? FAILED : 0;
            uint64_t h = arena.hash(static_cast<uint64_t>(entries.root_id[row]));
            Ref ref = arena.has_room(1) ? arena.place(h, flags) : Ref{};
            for (; !ref; ref = arena.place(h, flags))
                if (!arena.grow()) return row;
            ref.val() = static_cast<uint64_t>(entries.ack_val[row]);
            *arena.cold(ref) = Cold{entries.message_id[row], entries.task_id[row], entries.start[row]};
            ++held_in_[tag];
            tracked_in_[tag] += tracked;
            open_ += tracked;
        }
        return rows;
    }

    // What must hold between calls; for tests.
    bool check_invariants() noexcept {
        int64_t held[BUCKETS_MAX + 1] = {}, tracked[BUCKETS_MAX + 1] = {}, open = 0;
        bool good = arena.check_invariants();
        arena.each([&](uint64_t, Ref ref, Cold*) {
            bool is_tracked = (ref.word() & TRACKED) != 0;
            ++held[ref.tag()];
            tracked[ref.tag()] += is_tracked;
            open += is_tracked;
            good = good && ref.tag() <= buckets_ && !(is_tracked && (ref.word() & FAILED) != 0);
            return true;
        });
        for (unsigned tag = 0; tag <= BUCKETS_MAX; ++tag)
            good = good && held[tag] == held_in_[tag] && tracked[tag] == tracked_in_[tag];
        return good && open == open_ &&
               counters.tracked == counters.acked + counters.failed + counters.timed_out + open_;
    }

  private:
    // What is to be done at a cold part, in this order.
    enum Task : uint32_t { START = 1, KEEP = 2, REPORT = 4 };  // write start tick; write message and task id; report
    struct Deferred {
        Cold* cold;
        uint32_t row;  // counted from the first of the stretch
        uint16_t tasks;
        int8_t outcome;
    };

    struct Stretch {
        size_t first = 0;
        uint64_t hash[STRETCH_ROWS + FETCH_AHEAD];
        Line* line[STRETCH_ROWS + FETCH_AHEAD];
        Deferred deferred[STRETCH_ROWS];
        size_t deferred_rows = 0;
        size_t settled_rows = 0;
    };

    template <Protocol P>
    size_t ingest_as(const Messages& messages, uint32_t now) noexcept {
        size_t row = 0;
        while (row < messages.rows) {
            bool room = arena.has_room(CHUNK_ROWS) || arena.grow();
            if (!room || !finished.reserve(finished.rows + STRETCH_ROWS)) return row;
            if (!arena.has_room(CHUNK_ROWS)) continue;
            size_t end = messages.rows - row < STRETCH_ROWS ? messages.rows : row + STRETCH_ROWS;
            bool full = false;
            row = run<P>(messages, row, end, now, &full);
            if (full && !arena.grow()) return row;
        }
        return row;
    }

    // Applies rows from `first` up to `end`; stops early where the arena needs to grow before the next row: at a chunk
    // when the load is reached, or at a row (`full`) that finds no slot.
    template <Protocol P>
    size_t run(const Messages& messages, size_t first, size_t end, uint32_t now, bool* full) noexcept {
        Stretch stretch;  // 16 kB; written before it is read, so not cleared
        stretch.first = first;
        size_t rows = end - first;
        size_t i = 0;
        do {
            stretch.hash[i] = arena.hash(static_cast<uint64_t>(messages.root_id[first + i]));
            stretch.line[i] = arena.home(stretch.hash[i]);
        } while (++i < rows);
        for (i = 0; i < FETCH_AHEAD; ++i) {  // past the end any line that exists will do
            ACKER_PREFETCH(stretch.line[i < rows ? i : 0]);
            stretch.line[rows + i] = stretch.line[0];
        }
        i = 0;
        while (i < rows && !*full && arena.has_room(CHUNK_ROWS)) {
            size_t chunk_end = rows - i < CHUNK_ROWS ? rows : i + CHUNK_ROWS;
            size_t ripe = stretch.deferred_rows;
            for (; i < chunk_end; ++i) {
                ACKER_PREFETCH(stretch.line[i + FETCH_AHEAD]);
                if (!apply<P>(messages, stretch, i)) {
                    *full = true;
                    break;
                }
            }
            settle(messages, stretch, ripe, now);
        }
        settle(messages, stretch, stretch.deferred_rows, now);
        return first + i;
    }

    // One message. False: nothing was changed, the arena must grow first.
    template <Protocol P>
    bool apply(const Messages& messages, Stretch& stretch, size_t i) noexcept {
        uint64_t h = stretch.hash[i];
        int8_t kind = messages.kind[stretch.first + i];
        uint64_t value = static_cast<uint64_t>(messages.value[stretch.first + i]);
        Ref ref = Arena::find_in(stretch.line[i], h);
        if (!ref && (stretch.line[i]->word[0] & OVERFLOWED) != 0) ref = arena.find(h);
        if (!ref) return apply_unknown<P>(stretch, i, h, kind, value);

        if (kind == RESET_TIMEOUT) {
            ++counters.resets;
            move_to_nursery(ref);
            return true;
        }
        if (kind == TRACK) {
            if ((ref.word() & TRACKED) != 0) {
                ++counters.duplicates;
                return true;
            }
            if (open_ > open_max_) {
                reject(stretch, i);
                return true;
            }
            keep(stretch, i, ref);
        }
        if (P == Protocol::storm_09 || (P == Protocol::storm && kind == FAIL)) move_to_nursery(ref);
        if (kind == FAIL) {
            ref.word() |= FAILED;
        } else {
            ref.val() ^= value;
        }
        if ((ref.word() & TRACKED) == 0) return true;
        if (P == Protocol::fsshelter) {
            if (kind == FAIL)
                finish(stretch, i, h, ref, FAILED_TREE);
            else if (kind == OK && ref.val() == 0)
                finish(stretch, i, h, ref, ACKED);
        } else if (ref.val() == 0) {
            finish(stretch, i, h, ref, ACKED);
        } else if ((ref.word() & FAILED) != 0) {
            finish(stretch, i, h, ref, FAILED_TREE);
        }
        return true;
    }

    template <Protocol P>
    bool apply_unknown(Stretch& stretch, size_t i, uint64_t h, int8_t kind, uint64_t value) noexcept {
        if (kind == RESET_TIMEOUT || (P == Protocol::fsshelter && kind != TRACK)) {
            ++counters.unknown;
            return true;
        }
        if (kind == TRACK && open_ > open_max_) {
            reject(stretch, i);
            return true;
        }
        if (kind == TRACK && value == 0 && P != Protocol::fsshelter) {  // the spout's tuple went nowhere
            ++counters.tracked;
            ++counters.acked;
            defer(stretch, &nowhere_, i, START | KEEP | REPORT, ACKED);
            return true;
        }
        if (kind != TRACK && static_cast<int64_t>(arena.count()) > held_max_) {
            ++counters.dropped;
            return true;
        }
        uint64_t flags = static_cast<uint64_t>(nursery_) << TAG_SHIFT;
        Ref ref = arena.place(h, flags | (kind == FAIL ? FAILED : 0));
        if (!ref) return false;
        ++held_in_[nursery_];
        defer(stretch, arena.cold(ref), i, START, ACKED);
        if (kind == TRACK) keep(stretch, i, ref);
        if (kind != FAIL && P != Protocol::fsshelter) ref.val() = value;
        return true;
    }

    void keep(Stretch& stretch, size_t i, Ref ref) noexcept {
        ref.word() |= TRACKED;
        ++tracked_in_[ref.tag()];
        ++open_;
        ++counters.tracked;
        Deferred* last = stretch.deferred + stretch.deferred_rows - 1;
        if (stretch.deferred_rows > 0 && last->row == i) {
            last->tasks |= KEEP;
        } else {
            defer(stretch, arena.cold(ref), i, KEEP, ACKED);
        }
    }

    void finish(Stretch& stretch, size_t i, uint64_t h, Ref ref, Outcome outcome) noexcept {
        --held_in_[ref.tag()];
        --tracked_in_[ref.tag()];
        --open_;
        counters.acked += outcome == ACKED;
        counters.failed += outcome == FAILED_TREE;
        Deferred* last = stretch.deferred + stretch.deferred_rows - 1;
        if (stretch.deferred_rows > 0 && last->row == i) {
            last->tasks |= REPORT;
            last->outcome = outcome;
        } else {
            defer(stretch, arena.cold(ref), i, REPORT, outcome);
        }
        arena.erase(h, ref);
    }

    void reject(Stretch& stretch, size_t i) noexcept {
        ++counters.rejected;
        defer(stretch, &nowhere_, i, START | KEEP | REPORT, REJECTED);
    }

    void move_to_nursery(Ref ref) noexcept {
        unsigned tag = ref.tag();
        int64_t is_tracked = (ref.word() & TRACKED) != 0;
        --held_in_[tag];
        ++held_in_[nursery_];
        tracked_in_[tag] -= is_tracked;
        tracked_in_[nursery_] += is_tracked;
        ref.word() = (ref.word() & ((uint64_t{1} << TAG_SHIFT) - 1)) | (static_cast<uint64_t>(nursery_) << TAG_SHIFT);
    }

    static void defer(Stretch& stretch, Cold* cold, size_t i, unsigned tasks, Outcome outcome) noexcept {
        ACKER_PREFETCH(cold);
        stretch.deferred[stretch.deferred_rows++] =
            Deferred{cold, static_cast<uint32_t>(i), static_cast<uint16_t>(tasks), outcome};
    }

    void settle(const Messages& messages, Stretch& stretch, size_t up_to, uint32_t now) noexcept {
        for (; stretch.settled_rows < up_to; ++stretch.settled_rows) {
            const Deferred& deferred = stretch.deferred[stretch.settled_rows];
            size_t row = stretch.first + deferred.row;
            Cold cold = *deferred.cold;
            if ((deferred.tasks & START) != 0) cold.start = now;
            if ((deferred.tasks & KEEP) != 0) {
                cold.message_id = messages.message_id == nullptr ? 0 : messages.message_id[row];
                cold.task_id = messages.task_id[row];
            }
            *deferred.cold = cold;
            if ((deferred.tasks & REPORT) == 0) continue;
            finished.root_id[finished.rows] = messages.root_id[row];
            finished.message_id[finished.rows] = cold.message_id;
            finished.elapsed_ms[finished.rows] = elapsed_ms(cold.start, now);
            finished.task_id[finished.rows] = cold.task_id;
            finished.outcome[finished.rows++] = deferred.outcome;
        }
    }

    int64_t open_ = 0;
    int64_t open_max_;
    int64_t held_max_;
    int64_t held_in_[BUCKETS_MAX + 1] = {};
    int64_t tracked_in_[BUCKETS_MAX + 1] = {};
    unsigned buckets_;
    unsigned nursery_ = 1;
    Protocol protocol_;
    Cold nowhere_ = {};  // the cold part of trees that are reported without ever being stored
};

}  // namespace acker
