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
        finished.push_back({roots[row], messages[row], tasks[row], TIMED_OUT, elapsed[row]});
    std::sort(finished.begin(), finished.end());
    return finished;
}

// A snapshot's columns, exactly as long as they have to be.
struct Snapshot {
    std::vector<int64_t> root_id, ack_val, message_id;
    std::vector<int32_t> task_id;
    std::vector<uint32_t> start;
    std::vector<uint8_t> state, age;

    explicit Snapshot(AckerCore* core)
        : root_id(core->arena.count()),
          ack_val(root_id.size()),
          message_id(root_id.size()),
          task_id(root_id.size()),
          start(root_id.size()),
          state(root_id.size()),
          age(root_id.size()) {
        copy_out(core, from(0));
    }

    size_t rows() const { return root_id.size(); }

    Entries from(size_t first) {
        return Entries{root_id.data() + first, ack_val.data() + first, message_id.data() + first,
                       task_id.data() + first, start.data() + first,   state.data() + first,
                       age.data() + first};
    }
};

// Takes a snapshot's entries over, first with `budget` allocations, then with as many as it takes.
inline void put_back(AckerCore* core, Snapshot* snapshot, int64_t budget = -1) {
    Allocations allocations(budget);
    size_t done = acker::put_back(core, snapshot->from(0), snapshot->rows());
    CHECK(core->arena.count() == done);
    if (done == snapshot->rows()) return;
    CHECK(budget >= 0 && allocations_left() == 0);
    allocations_left() = -1;
    CHECK(acker::put_back(core, snapshot->from(done), snapshot->rows() - done) == snapshot->rows() - done);
}

inline bool same(const Counters& a, const Counters& b) {
    return a.tracked == b.tracked && a.acked == b.acked && a.failed == b.failed && a.timed_out == b.timed_out &&
           a.rejected == b.rejected && a.duplicates == b.duplicates && a.unknown == b.unknown &&
           a.orphans == b.orphans && a.dropped == b.dropped && a.resets == b.resets;
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
    Snapshot snapshot(core);
    CHECK(snapshot.rows() == model.trees.size());
    for (size_t row = 0; row < snapshot.rows(); ++row) {
        auto found = model.trees.find(snapshot.root_id[row]);
        CHECK(found != model.trees.end());
        const Model::Tree& tree = found->second;
        CHECK(static_cast<uint64_t>(snapshot.ack_val[row]) == tree.ack_val);
        CHECK(snapshot.start[row] == static_cast<uint32_t>(tree.start));
        CHECK(snapshot.state[row] == (tree.tracked ? ENTRY_TRACKED : tree.failed ? ENTRY_FAILED : ENTRY_UNTRACKED));
        CHECK(snapshot.age[row] == model.age(tree));
        CHECK(!tree.tracked || (snapshot.message_id[row] == tree.message_id && snapshot.task_id[row] == tree.task_id));
    }
}

}  // namespace acker::testing
