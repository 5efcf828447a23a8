// The acker, which applies batches of messages to the arena in row order, collects the trees they finish, and rotates.
//
// A batch runs in stretches of rows. All hashes of a stretch are computed first, so that the line of a row can be
// fetched while earlier rows are processed. Cold parts are not touched in that loop: their work is listed and done a
// chunk of rows later, when the fetch has arrived. Rules: the acker protocol (docs/protocol.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "codes.h"
#include "columns.h"
#include "memory.h"
#include "probe.h"
#include "rules.h"
#include "sweep.h"

namespace acker {

constexpr size_t STRETCH_ROWS = 512;   // hashed together
constexpr size_t CHUNK_ROWS = 64;      // cold work waits for one chunk
constexpr size_t FETCH_AHEAD = 24;     // rows between the fetch of a line and its use
constexpr size_t LOOK_AHEAD = 8;       // rows before its use at which a line shows whether the next line is needed too
constexpr size_t IDLE_STEPS = 16;      // segments that a rotation with nothing to expire gives back, in 0.5 to 3 ms
constexpr size_t FAR_BYTES = 1 << 19;  // a table beyond this is not in the core's own cache
constexpr uint32_t ELAPSED_MS_MAX = 49u * 24 * 3600 * 1000;

// Milliseconds since a start tick. More than 49 days mean that the clock was set back, and read 0.
inline int64_t elapsed_ms(uint32_t start, uint32_t now) noexcept {
    uint32_t elapsed = now - start;
    return elapsed > ELAPSED_MS_MAX ? 0 : static_cast<int64_t>(elapsed);
}

// The columns of finished trees, in the order in which they finished; owned here until the caller has copied them.
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

    // Makes room for `wanted` rows in all five columns; false: no memory, nothing changed.
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

    // Hands the block to the caller, who releases it.
    void* hand_over() noexcept {
        void* block = root_id;
        root_id = nullptr;
        rows = capacity = 0;
        return block;
    }

    // Drops the rows; keeps the memory of a usual batch and releases that of a large one.
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
        if (highest >= KINDS || signs < 0) {
            for (size_t row = start; row < end; ++row)
                if (static_cast<uint8_t>(kind[row]) >= KINDS || (task_id != nullptr && task_id[row] < 0)) return row;
        }
        tracks_seen += static_cast<size_t>(tracks_here);
    }
    *tracks = tracks_seen;
    return rows;
}

class AckerCore {
  public:
    // high_water < 0: no limit.
    AckerCore(Protocol protocol, unsigned buckets, int64_t high_water, uint64_t seed, bool avx2) noexcept
        : arena(seed), buckets_(buckets), protocol_(protocol), avx2_(avx2 && machine_has_avx2()) {
        constexpr int64_t NEVER = INT64_MAX;
        open_max_ = high_water < 0 ? NEVER : (high_water > NEVER / 4 ? NEVER : high_water * 2);
        held_max_ = high_water < 0 ? NEVER : (high_water > NEVER / 4 ? NEVER : high_water * 4);
    }

    Arena arena;
    Finished finished;
    Counters counters = {};

    bool avx2() const noexcept { return avx2_; }
    int64_t open() const noexcept { return open_; }
    Protocol protocol() const noexcept { return protocol_; }
    unsigned buckets() const noexcept { return buckets_; }
    unsigned nursery() const noexcept { return nursery_; }
    unsigned death_row() const noexcept { return nursery_ % buckets_ + 1; }
    int64_t tracked_in(unsigned tag) const noexcept { return entries_[tag << 2 | TRACKED_ENTRY]; }
    int64_t held_in(unsigned tag) const noexcept {
        return entries_[tag << 2 | UNTRACKED_ENTRY] + entries_[tag << 2 | FAILED_ENTRY] + tracked_in(tag);
    }

    // For one of several ackers: the next tree is refused beyond so many open trees, the next entry beyond so many
    // entries.
    void set_capacity(int64_t open_max, int64_t held_max) noexcept {
        open_max_ = open_max;
        held_max_ = held_max;
    }

    // Reserves the memory that so many rows need, as far as it can be foreseen (see Arena::reserve); false: no memory.
    bool reserve(size_t rows, size_t finished_rows) noexcept {
        return arena.reserve(rows + CHUNK_ROWS) && finished.reserve(finished_rows + STRETCH_ROWS);
    }

    bool has_reserve(size_t rows) const noexcept {
        return arena.has_reserve(rows + CHUNK_ROWS) && finished.capacity >= rows + STRETCH_ROWS;
    }

    // Applies all rows, or as many leading ones as memory allows; returns how many. `finished` holds what they
    // finished.
    size_t ingest(const Messages& messages, int64_t now_ms) noexcept {
        finished.rows = 0;
        return ingest_more(messages, now_ms);
    }

    // The same, but keeps the trees that are in `finished` already.
    size_t ingest_more(const Messages& messages, int64_t now_ms) noexcept {
        uint32_t now = static_cast<uint32_t>(static_cast<uint64_t>(now_ms));
        switch (protocol_) {
            case Protocol::storm: return ingest_as<Protocol::storm>(messages, now);
            case Protocol::storm_09: return ingest_as<Protocol::storm_09>(messages, now);
            default: return ingest_as<Protocol::fsshelter>(messages, now);
        }
    }

    // Empties death row into the given columns, which have room for tracked_in(death_row()) rows; it becomes the
    // nursery.
    void rotate(int64_t now_ms, int64_t* roots, int64_t* messages, int32_t* tasks, int64_t* elapsed) noexcept {
        unsigned tag = death_row();
        int64_t held = held_in(tag), row = 0;
        uint32_t now = static_cast<uint32_t>(static_cast<uint64_t>(now_ms));
        if (held > 0) {
            sweep(arena, tag, static_cast<size_t>(held), [&](uint64_t h, uint64_t word, const Cold& cold) {
                if ((word & TRACKED) == 0) return;
                roots[row] = static_cast<int64_t>(arena.root_of(h));
                messages[row] = cold.message_id;
                tasks[row] = cold.task_id;
                elapsed[row++] = elapsed_ms(cold.start, now);
            });
            open_ -= row;
            counters.timed_out += row;
            counters.orphans += held - row;
            for (unsigned state : {UNTRACKED_ENTRY, FAILED_ENTRY, TRACKED_ENTRY}) entries_[tag << 2 | state] = 0;
        }
        arena.shrink(held > 0 ? arena.segments() : IDLE_STEPS);  // after a sweep it may take as long again
        nursery_ = tag;
    }

    // Counts an entry that a snapshot has placed in the arena with these flags.
    void count_in(uint64_t flags) noexcept {
        ++entries_[flags >> STATE_SHIFT];
        open_ += (flags & TRACKED) != 0;
    }

    // Returns whether all invariants hold, as they must between calls. For tests.
    bool check_invariants() noexcept {
        int64_t entries[1 << (64 - STATE_SHIFT)] = {}, open = 0;
        bool good = arena.check_invariants();
        arena.each([&](uint64_t, Ref ref, Cold*) {
            bool is_tracked = (ref.word() & TRACKED) != 0;
            ++entries[ref.word() >> STATE_SHIFT];
            open += is_tracked;
            good = good && ref.tag() <= buckets_ && !(is_tracked && (ref.word() & FAILED) != 0);
            return true;
        });
        for (unsigned tagged = 1 << 2; tagged < sizeof(entries) / sizeof(entries[0]); ++tagged)
            good = good && entries[tagged] == entries_[tagged];
        return good && open == open_ &&
               counters.tracked == counters.acked + counters.failed + counters.timed_out + open_;
    }

  private:
    // Some rows that are hashed together, and those whose cold part needs work once it has been fetched. Their messages
    // are contiguous: in the batch itself or, for a selection, gathered here.
    struct Stretch {
        size_t first;
        uint32_t now;
        size_t noted = 0;
        size_t settled = 0;
        const int8_t* kinds;
        const int64_t* roots;
        const int64_t* values;
        const int32_t* tasks;
        const int64_t* message_ids;
        uint64_t fresh[STRETCH_ROWS];                   // the word that a new entry would get
        uintptr_t address[STRETCH_ROWS + FETCH_AHEAD];  // the address of a row's line, then of the word that it changed
        uint16_t note[STRETCH_ROWS];                    // the rows that wait, in order
        uint8_t effect[STRETCH_ROWS];                   // what a message can find, then what it did
        uint8_t before[STRETCH_ROWS];                   // what the word's six highest bits were: tag, TRACKED, FAILED
        static_assert(STRETCH_ROWS - 1 <= UINT16_MAX, "a row's number fits its field");
        static_assert(REJECTION <= UINT8_MAX, "an effect's number fits its field");

        Stretch(const Messages& messages, size_t first_row, size_t end, uint32_t now_tick) noexcept
            : first(first_row), now(now_tick) {
            static constexpr int64_t ZEROS[STRETCH_ROWS] = {};  // what columns that were left out read
            static constexpr int32_t NO_TASKS[STRETCH_ROWS] = {};
            const uint32_t* rows = messages.selection == nullptr ? nullptr : messages.selection + first;
            size_t count = end - first;
            kinds = rows_of(messages.kind, rows, count, kind_);
            roots = rows_of(messages.root_id, rows, count, root_);
            values = rows_of(messages.value, rows, count, value_);
            tasks = messages.task_id == nullptr ? NO_TASKS : rows_of(messages.task_id, rows, count, task_);
            message_ids = messages.message_id == nullptr ? ZEROS : rows_of(messages.message_id, rows, count, message_);
        }

      private:
        template <typename T>
        ACKER_ALWAYS_INLINE const T* rows_of(const T* column, const uint32_t* rows, size_t count,
                                             T* gathered) noexcept {
            if (rows == nullptr) return column + first;
            for (size_t i = 0; i < count; ++i) gathered[i] = column[rows[i]];
            return gathered;
        }

        int8_t kind_[STRETCH_ROWS];
        int64_t root_[STRETCH_ROWS];
        int64_t value_[STRETCH_ROWS];
        int32_t task_[STRETCH_ROWS];
        int64_t message_[STRETCH_ROWS];
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
            Stretch stretch(messages, row, end, now);
            row = avx2_ ? run_avx2<P>(stretch, end, &full) : run<P, PortableProbe>(stretch, end, &full);
            if (!full) continue;
            uint64_t h = arena.hash(static_cast<uint64_t>(stretch.roots[row - stretch.first]));
            if (!arena.relieve(h)) return row;
        }
        return row;
    }

    template <Protocol P>
    ACKER_TARGET_AVX2 size_t run_avx2(Stretch& stretch, size_t end, bool* full) noexcept {
        return run<P, Avx2Probe>(stretch, end, full);
    }

    // Applies rows up to `end`; stops early where the arena needs to grow before the next row: at a chunk when the load
    // is reached, or at a row (`full`) that finds no slot. Returns the row it stopped at.
    template <Protocol P, typename Probe>
    ACKER_ALWAYS_INLINE size_t run(Stretch& stretch, size_t end, bool* full) noexcept {
        const Arena::Homes homes = arena.homes();
        const uint64_t tag = static_cast<uint64_t>(nursery_) << TAG_SHIFT;
        size_t rows = end - stretch.first, zeros = 0, i = 0;
        for (i = 0; i < rows; ++i) {
            uint64_t h = homes.hash.of(static_cast<uint64_t>(stretch.roots[i]));
            stretch.fresh[i] = (h & HASH_MASK) | tag;
            stretch.address[i] = reinterpret_cast<uintptr_t>(homes.of(h));
            zeros += stored_is_zero(h);
        }
        for (i = 0; i < rows; ++i) stretch.effect[i] = finding_of(stretch.kinds[i], 0);
        const bool far = arena.bytes() > FAR_BYTES;
        for (i = 0; i < FETCH_AHEAD; ++i) {  // past the end any line that exists will do
            ACKER_PREFETCH(reinterpret_cast<const Line*>(stretch.address[i < rows ? i : 0]));
            stretch.address[rows + i] = stretch.address[0];
        }
        for (i = 0; i < rows && !*full && arena.has_room(CHUNK_ROWS);) {
            size_t chunk_end = rows - i < CHUNK_ROWS ? rows : i + CHUNK_ROWS;
            size_t ripe = stretch.noted;
            i = !has_capacity() || zeros != 0 ? apply_rows<P>(stretch, i, chunk_end, full)
                : far                         ? apply_chunk<P, Probe, true>(stretch, i, chunk_end, full)
                                              : apply_chunk<P, Probe, false>(stretch, i, chunk_end, full);
            settle<P>(stretch, ripe);
        }
        settle<P>(stretch, stretch.noted);
        return stretch.first + i;
    }

    // Whether a whole chunk can be applied without a look at the capacity rules.
    bool has_capacity() const noexcept {
        int64_t rows = CHUNK_ROWS, held = static_cast<int64_t>(arena.count());
        return open_ <= open_max_ - rows && held <= held_max_ - rows;
    }

    // The fast path: entries that stand on their home line, or will, with no branch that depends on the data but those
    // of lines that are overflowed. FAR: the table is not in the core's own cache, and what is not looked at in the
    // order of the rows has to be fetched.
    template <Protocol P, typename Probe, bool FAR>
    ACKER_ALWAYS_INLINE size_t apply_chunk(Stretch& stretch, size_t i, size_t end, bool* full) noexcept {
        const Rules& rules = RulesOf<P>::rules;
        const int64_t* values = stretch.values;
        const size_t cold_distance = arena.cold_distance();
        uint16_t* note = stretch.note + stretch.noted;
        uint64_t tally = 0;
        for (; i < end; ++i) {
            ACKER_PREFETCH(reinterpret_cast<const Line*>(stretch.address[i + FETCH_AHEAD]));
            if (FAR) {
                const Line* soon = reinterpret_cast<const Line*>(stretch.address[i + LOOK_AHEAD]);
                ACKER_PREFETCH(soon + (soon->word[0] / OVERFLOWED & 1));
            }
            Line* line = reinterpret_cast<Line*>(stretch.address[i]);
            uint64_t fresh = stretch.fresh[i];
            unsigned matches = Probe::matches(line, fresh);
            if (ACKER_UNLIKELY(matches == 0)) {
                line = arena.next_of_marked(line);  // most entries that are not at home are one line further on
                matches = line == nullptr ? 0 : Probe::matches(line, fresh) % (1u << SLOTS);
                if (matches == 0) {
                    stretch.noted = static_cast<size_t>(note - stretch.note);
                    *full = !apply<P>(stretch, i);
                    if (*full) break;
                    note = stretch.note + stretch.noted;
                    continue;
                }
            }
            unsigned match = ACKER_LOWEST_BIT(matches), slot = match % SLOTS;
            uint64_t* at = line->word + slot;
            uint64_t* val_at = line->val + slot;
            uint64_t word = *at;
            size_t finding = stretch.effect[i] | (match & NO_ENTRY) | (static_cast<unsigned>(word >> STATE_SHIFT) & 3);
            uint64_t val = *val_at ^ (static_cast<uint64_t>(values[i]) & rules.value_mask[finding]);
            size_t effect = finding + finding + (val == 0);
            *at = (word & rules.keep[effect]) | (fresh & rules.take[effect]) | rules.set[effect];
            *val_at = val & rules.keep_val[effect];
            tally += rules.tally[effect];

            bool at_home = reinterpret_cast<uintptr_t>(line) == stretch.address[i];
            if (ACKER_UNLIKELY(!at_home) && rules.event[effect].reports != 0) arena.clear_mark_before(line);
            stretch.address[i] = reinterpret_cast<uintptr_t>(at);
            stretch.effect[i] = static_cast<uint8_t>(effect);
            stretch.before[i] = static_cast<uint8_t>(word >> STATE_SHIFT);
            *note = static_cast<uint16_t>(i);
            note += rules.noted[effect];
            if (FAR) ACKER_PREFETCH(reinterpret_cast<const char*>(line) + (cold_distance & (0 - rules.noted[effect])));
        }
        add_up(tally);
        stretch.noted = static_cast<size_t>(note - stretch.note);
        return i;
    }

    void add_up(uint64_t tally) noexcept {
        auto count = [tally](Tally which) { return static_cast<int64_t>(tally >> which & 255); };
        arena.adjust_count(count(CREATED) - count(ENDED));
        open_ += count(TRACKS) - count(ENDED);
        counters.tracked += count(TRACKS);
        counters.acked += count(ENDED) - count(ENDED_FAILED);
        counters.failed += count(ENDED_FAILED);
        counters.duplicates += count(DUPLICATES);
        counters.unknown += count(UNKNOWN);
        counters.resets += count(RESETS);
        counters.empty += count(EMPTY);
    }

    template <Protocol P>
    size_t apply_rows(Stretch& stretch, size_t i, size_t end, bool* full) noexcept {
        for (; i < end && !*full; i += !*full) *full = !apply<P>(stretch, i);
        return i;
    }

    // The slow path, which alone handles capacity and displaced entries: one message, wherever its entry is. False: the
    // arena must grow first, nothing has changed.
    template <Protocol P>
    ACKER_NOINLINE bool apply(Stretch& stretch, size_t i) noexcept {
        const Rules& rules = RulesOf<P>::rules;
        Kind kind = static_cast<Kind>(static_cast<unsigned>(stretch.kinds[i]) % KIND_CODES);
        // From this read of the root id alone: another thread may have changed the column since `fresh` was made.
        uint64_t h = arena.hash(static_cast<uint64_t>(stretch.roots[i]));
        uint64_t fresh = (h & HASH_MASK) | static_cast<uint64_t>(nursery_) << TAG_SHIFT;
        Ref ref = arena.find(h);
        uint64_t word = ref ? ref.word() : 0;
        unsigned found = ref ? static_cast<unsigned>(word >> STATE_SHIFT) & 3 : NO_ENTRY;
        if (kind == TRACK && found != TRACKED_ENTRY && open_ > open_max_) {
            ++counters.rejected;
            note(stretch, i, nowhere(), REJECTION, 0);
            return true;
        }
        if (found == NO_ENTRY && kind != TRACK && !ignores_unknown(P, kind) &&
            static_cast<int64_t>(arena.count()) > held_max_) {
            ++counters.dropped;
            return true;
        }
        unsigned finding = finding_of(kind, found);
        uint64_t value = static_cast<uint64_t>(stretch.values[i]) & rules.value_mask[finding];
        uint64_t val = (ref ? ref.val() : 0) ^ value;
        unsigned effect = finding * 2 + (val == 0);
        uint64_t after = (word & rules.keep[effect]) | (fresh & rules.take[effect]) | rules.set[effect];
        bool known = found != NO_ENTRY, ends = rules.event[effect].reports != 0;
        if (!known && rules.event[effect].mask.start != 0 && !ends) {
            ref = arena.insert(h, after & ~HASH_MASK);
            if (!ref) return false;
        }
        uintptr_t at = ref ? reinterpret_cast<uintptr_t>(&ref.word()) : nowhere();
        if (rules.noted[effect] != 0) note(stretch, i, at, effect, word);
        if (ref && !ends) {
            ref.word() = after | (ref.word() & OVERFLOWED);
            ref.val() = val;
        }
        if (known && ends) arena.erase(h, ref);
        add_up(rules.tally[effect]);
        arena.adjust_count(known ? ends : (ends || !ref ? 0 : -1));  // insert and erase have counted already
        return true;
    }

    void note(Stretch& stretch, size_t i, uintptr_t at, unsigned effect, uint64_t word) const noexcept {
        stretch.address[i] = at;
        stretch.effect[i] = static_cast<uint8_t>(effect);
        stretch.before[i] = static_cast<uint8_t>(word >> STATE_SHIFT);
        stretch.note[stretch.noted++] = static_cast<uint16_t>(i);
        ACKER_PREFETCH(cold_of(at, arena.cold_distance()));
    }

    // The cold part that belongs to a word: twice as far into its line.
    static Cold* cold_of(uintptr_t at, size_t cold_distance) noexcept {
        static_assert(sizeof(Cold) == 2 * sizeof(uint64_t), "a cold part is as long as two words");
        return reinterpret_cast<Cold*>(at + at % LINE_BYTES + cold_distance);
    }

    // The address of a word whose cold part belongs to no entry: for trees that are reported but never stored.
    uintptr_t nowhere() const noexcept { return reinterpret_cast<uintptr_t>(&nowhere_) - arena.cold_distance(); }

    // Does the noted work of the rows before `up_to`, in order: cold parts, the counts of each bucket, and reports.
    // Half of the rows may report, so reports are collected without a branch and written afterwards.
    template <Protocol P>
    ACKER_ALWAYS_INLINE void settle(Stretch& stretch, size_t up_to) noexcept {
        const Rules& rules = RulesOf<P>::rules;
        const size_t cold_distance = arena.cold_distance();
        const unsigned nursery = nursery_ << (TAG_SHIFT - STATE_SHIFT);
        Cold report[CHUNK_ROWS];
        uint16_t reporting[CHUNK_ROWS];
        size_t reports = 0;
        for (size_t settled = stretch.settled; settled < up_to; ++settled) {
            size_t i = stretch.note[settled];
            const Event& event = rules.event[stretch.effect[i]];
            Cold* at = cold_of(stretch.address[i], cold_distance);
            Cold cold = at->blend(stretch.message_ids[i], stretch.tasks[i], stretch.now, event.mask);
            *at = cold;
            report[reports] = cold;
            reporting[reports] = static_cast<uint16_t>(i);
            reports += event.reports;
            unsigned before = stretch.before[i];
            --entries_[before];
            ++entries_[(before & event.keep) | (nursery & event.take) | event.set];
        }
        stretch.settled = up_to;
        const int64_t* const roots = stretch.roots;
        int64_t* const to_root = finished.root_id + finished.rows;
        int64_t* const to_message = finished.message_id + finished.rows;
        int64_t* const to_elapsed = finished.elapsed_ms + finished.rows;
        int32_t* const to_task = finished.task_id + finished.rows;
        int8_t* const to_outcome = finished.outcome + finished.rows;
        for (size_t r = 0; r < reports; ++r) {
            to_root[r] = roots[reporting[r]];
            to_message[r] = report[r].message_id;
            to_elapsed[r] = elapsed_ms(report[r].start, stretch.now);
            to_task[r] = report[r].task_id;
            to_outcome[r] = rules.event[stretch.effect[reporting[r]]].outcome;
        }
        finished.rows += reports;
    }

    int64_t open_ = 0;
    int64_t open_max_;
    int64_t held_max_;
    int64_t entries_[1 << (64 - STATE_SHIFT)] = {};  // by tag and state, as in Event; those without a tag mean nothing
    unsigned buckets_;
    unsigned nursery_ = 1;
    Protocol protocol_;
    bool avx2_;
    alignas(LINE_BYTES) Cold nowhere_ = {};
};

}  // namespace acker
