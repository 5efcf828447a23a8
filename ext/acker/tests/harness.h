// An acker next to what it must equal. Used by the unit tests and by the fuzz body.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../snapshot.h"
#include "check.h"
#include "model.h"

namespace acker::testing {

// Lets `budget` more allocations succeed while it lives; negative: all.
class Allocations {
  public:
    explicit Allocations(int64_t budget) { allocations_left() = budget; }
    Allocations(const Allocations&) = delete;
    Allocations& operator=(const Allocations&) = delete;
    ~Allocations() { allocations_left() = -1; }
};

inline std::vector<Completion> finished_of(const AckerCore& core) {
    std::vector<Completion> rows;
    const Finished& finished = core.finished;
    for (size_t row = 0; row < finished.rows; ++row)
        rows.push_back({finished.root_id[row], finished.message_id[row], finished.task_id[row], finished.outcome[row],
                        finished.elapsed_ms[row]});
    return rows;
}

// Applies all rows: first with `budget` allocations, then, if those did not suffice, the rest with as many as it takes.
template <typename Batch>
std::vector<Completion> ingest(AckerCore* core, const Batch& batch, int64_t now, int64_t budget = -1) {
    Allocations allocations(budget);
    size_t rows = batch.rows();
    size_t done = core->ingest(batch.template from<Messages>(0), now);
    std::vector<Completion> finished = finished_of(*core);
    if (done < rows) {
        CHECK(budget >= 0 && allocations_left() == 0);
        CHECK(core->check_invariants());
        allocations_left() = -1;
        CHECK(core->ingest(batch.template from<Messages>(done), now) == rows - done);
        std::vector<Completion> more = finished_of(*core);
        finished.insert(finished.end(), more.begin(), more.end());
    }
    core->finished.give_back();
    CHECK(core->finished.rows == 0 && core->finished.capacity <= Finished::CAPACITY_KEPT);
    return finished;
}

// In the order of root ids.
inline std::vector<Completion> rotate(AckerCore* core, int64_t now, int64_t budget = -1) {
    Allocations allocations(budget);
    size_t rows = static_cast<size_t>(core->tracked_in(core->death_row()));
    std::vector<int64_t> roots(rows), messages(rows), elapsed(rows);
    std::vector<int32_t> tasks(rows);
    core->rotate(now, roots.data(), messages.data(), tasks.data(), elapsed.data());
    std::vector<Completion> finished;
    for (size_t row = 0; row < rows; ++row)
        finished.push_back({roots[row], messages[row], tasks[row], OUTCOME_TIMED_OUT, elapsed[row]});
    std::sort(finished.begin(), finished.end());
    return finished;
}

// The blocks of a snapshot, each in memory of exactly its size.
struct Snapshot {
    static constexpr uint64_t CHECKSUM = 5;  // in the place of the header's

    std::vector<std::vector<uint8_t>> blocks;
    size_t entries = 0;

    explicit Snapshot(const std::vector<AckerCore*>& cores) {
        SnapshotWriter writer(cores.data(), cores.size(), CHECKSUM);
        for (AckerCore* core : cores) entries += core->arena.count();
        size_t bytes = writer.bytes(), left = entries;
        for (size_t rows; (rows = writer.next_entries()) > 0; left -= rows) {
            CHECK(rows == std::min(left, BLOCK_ENTRIES));
            blocks.emplace_back(block_bytes(rows));
            writer.write(blocks.back().data());
            bytes -= blocks.back().size();
        }
        CHECK(left == 0 && bytes == 0);
    }

    static size_t rows_of(const std::vector<uint8_t>& block) { return (block.size() - CHECKSUM_BYTES) / ENTRY_BYTES; }

    // Calls visit(columns, row) for every entry.
    template <typename Visit>
    void each(Visit visit) const {
        for (const std::vector<uint8_t>& block : blocks)
            for (size_t row = 0; row < rows_of(block); ++row)
                visit(BlockColumns<const uint8_t>(block.data(), rows_of(block)), row);
    }

    // Fills new cores, told that there are `room` entries; tells what was wrong, and with which entry.
    Fault read_into(const std::vector<AckerCore*>& cores, size_t room, size_t* entry) const {
        SnapshotReader reader(cores.data(), cores.size(), CHECKSUM, room);
        size_t before = 0;
        for (const std::vector<uint8_t>& block : blocks) {
            Fault fault = reader.read(block.data(), rows_of(block), entry);
            *entry += before;
            if (fault != NO_FAULT) return fault;
            before += rows_of(block);
        }
        return NO_FAULT;
    }
};

inline std::vector<AckerCore*> pointers_to(const std::vector<std::unique_ptr<AckerCore>>& cores) {
    std::vector<AckerCore*> pointers;
    for (const auto& core : cores) pointers.push_back(core.get());
    return pointers;
}

// New cores, as `make` makes them, with the entries of others: first with `budget` allocations and then, since what a
// failure leaves behind is of no use, anew with as many as it takes.
template <typename Make>
std::vector<std::unique_ptr<AckerCore>> restored(const std::vector<AckerCore*>& cores, size_t count, Make make,
                                                 bool with_room, int64_t budget = -1) {
    Snapshot snapshot(cores);
    for (Allocations allocations(budget);; allocations_left() = -1) {
        std::vector<std::unique_ptr<AckerCore>> fresh;
        for (size_t core = 0; core < count; ++core) fresh.push_back(make());
        size_t entry = 0;
        Fault fault = snapshot.read_into(pointers_to(fresh), with_room ? snapshot.entries : 0, &entry);
        for (const auto& core : fresh) CHECK(core->arena.check_invariants());
        if (fault == NO_FAULT) return fresh;
        CHECK(fault == NO_MEMORY && allocations_left() == 0);
    }
}

inline bool same(const Counters& a, const Counters& b) {
    return a.tracked == b.tracked && a.acked == b.acked && a.failed == b.failed && a.timed_out == b.timed_out &&
           a.rejected == b.rejected && a.duplicates == b.duplicates && a.unknown == b.unknown &&
           a.orphans == b.orphans && a.dropped == b.dropped && a.resets == b.resets && a.empty == b.empty;
}

inline void check_numbers(const AckerCore& core, const Model& model) {
    CHECK(same(core.counters, model.counters));
    CHECK(core.open() == model.open);
    CHECK(core.arena.count() == model.trees.size());
}

// Every entry, value by value, and what must hold inside.
inline void check_entries(AckerCore* core, const Model& model) {
    CHECK(core->check_invariants());
    CHECK(core->tracked_in(core->death_row()) == model.tracked_on_death_row());
    Snapshot snapshot({core});
    CHECK(snapshot.entries == model.trees.size());
    snapshot.each([&](const BlockColumns<const uint8_t>& columns, size_t row) {
        auto found = model.trees.find(load<int64_t>(columns.root_id, row));
        CHECK(found != model.trees.end());
        const Model::Tree& tree = found->second;
        CHECK(load<uint64_t>(columns.ack_val, row) == tree.ack_val);
        CHECK(load<uint32_t>(columns.start, row) == static_cast<uint32_t>(tree.start));
        CHECK(columns.state[row] == (tree.tracked ? ENTRY_TRACKED : tree.failed ? ENTRY_FAILED : ENTRY_UNTRACKED));
        CHECK(columns.age[row] == model.age(tree));
        CHECK(load<int64_t>(columns.message_id, row) == (tree.tracked ? tree.message_id : 0));
        CHECK(load<int32_t>(columns.task_id, row) == (tree.tracked ? tree.task_id : 0));
    });
}

}  // namespace acker::testing
