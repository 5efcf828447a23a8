// oldest.h, rotation_watch.h: looking for trees that stay open.
#include "../../oldest.h"
#include "../../rotation_watch.h"
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

// The `most` oldest entries, by way of the heap.
std::vector<OldEntry> oldest_of(AckerCore* core, size_t most, bool clock_known = true, int64_t now_ms = 1000) {
    Oldest oldest(most);
    CHECK(oldest.start());
    oldest.look_at(*core, clock_known, now_ms);
    const OldEntry* entries = oldest.sorted();
    return {entries, entries + oldest.rows()};
}

TEST(the_oldest_entries_come_oldest_first_whatever_their_number) {
    AckerCore core(Protocol::storm, 3, -1, SEED, true);
    for (int64_t root = 0; root < 200; ++root) {
        int64_t start_ms = root * 7 % 200;  // in another order than the root ids
        ingest(&core, Columns({{TRACK, root, root + 1, static_cast<int32_t>(root), root + 2}}), start_ms);
    }
    for (size_t most : {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{199}, size_t{200}, size_t{300}}) {
        std::vector<OldEntry> entries = oldest_of(&core, most);
        CHECK(entries.size() == std::min(most, size_t{200}));
        for (size_t row = 0; row < entries.size(); ++row) {
            const OldEntry& entry = entries[row];
            const int64_t start_ms = static_cast<int64_t>(row);
            CHECK(entry.age_ms == 1000 - start_ms && entry.root_id * 7 % 200 == start_ms);
            CHECK(entry.ack_val == entry.root_id + 1 && entry.task_id == entry.root_id);
            CHECK(entry.message_id == entry.root_id + 2 && entry.state == TRACKED_ENTRY && entry.rotations_left == 3);
        }
    }
}

TEST(an_old_entry_tells_its_state_and_the_rotations_it_has_left) {
    AckerCore core(Protocol::storm, 3, -1, SEED, true);
    ingest(&core, Columns({{TRACK, 1, 9, 4, 5}, {OK, 2, 9, 0, 0}}), 100);
    rotate(&core, 200);
    ingest(&core, Columns({{FAIL, 3, 9, 0, 0}}), 300);
    std::vector<OldEntry> entries = oldest_of(&core, 10);
    CHECK(entries.size() == 3);
    const uint8_t states[] = {TRACKED_ENTRY, UNTRACKED_ENTRY, FAILED_ENTRY}, left[] = {2, 2, 3};
    const int64_t ages[] = {900, 900, 700};
    for (size_t row = 0; row < 3; ++row) {
        CHECK(entries[row].root_id == static_cast<int64_t>(row) + 1 && entries[row].age_ms == ages[row]);
        CHECK(entries[row].state == states[row] && entries[row].rotations_left == left[row]);
    }
    CHECK(entries[0].message_id == 5 && entries[0].task_id == 4);
    CHECK(entries[1].message_id == 0 && entries[1].task_id == 0 && entries[1].ack_val == 9);
}

TEST(without_a_clock_the_entries_that_leave_first_are_the_oldest) {
    AckerCore core(Protocol::storm, 3, -1, SEED, true);
    ingest(&core, Columns({{TRACK, 8, 9, 1, 1}}), 100);
    rotate(&core, 200);
    ingest(&core, Columns({{TRACK, 7, 9, 1, 1}, {TRACK, 6, 9, 1, 1}}), 50);
    std::vector<OldEntry> entries = oldest_of(&core, 10, false);
    CHECK(entries.size() == 3 && entries[0].root_id == 8 && entries[1].root_id == 6 && entries[2].root_id == 7);
    for (const OldEntry& entry : entries) CHECK(entry.age_ms == 0);
}

TEST(the_oldest_entries_of_several_ackers_are_merged) {
    AckerCore first(Protocol::storm, 3, -1, SEED, true), second(Protocol::fsshelter, 2, -1, SEED, true);
    ingest(&first, Columns({{TRACK, 1, 9, 1, 1}, {TRACK, 2, 9, 1, 1}}), 300);
    ingest(&second, Columns({{TRACK, 3, 9, 1, 1}}), 200);
    Oldest oldest(2);
    CHECK(oldest.start());
    oldest.look_at(first, true, 1000);
    oldest.look_at(second, true, 1000);
    const OldEntry* entries = oldest.sorted();
    CHECK(oldest.rows() == 2 && entries[0].root_id == 3 && entries[1].root_id == 1);
    Allocations none(0);
    Oldest without(2);
    CHECK(!without.start());
}

constexpr int64_t LONG_MS = 1000, FEW = 10, MANY = 100;

TEST(an_old_entry_is_looked_for_after_a_time_and_among_enough_entries_or_batches) {
    RotationWatch watch(LONG_MS, FEW, MANY);
    CHECK(!watch.has_time() && !watch.look(5, FEW, 1, 1) && watch.has_time() && watch.now_ms() == 5);
    CHECK(!watch.look(1004, FEW, 1, 1));
    CHECK(!watch.look(1005, 0, 0, 1) && !watch.look(1005, FEW - 1, 1, 1));
    CHECK(watch.look(1005, FEW, 1, 1));
    watch.look_again(400);  // the oldest entry is 400 ms old, so none can be long open for 600 ms
    CHECK(!watch.look(1604, FEW, 1, 1) && watch.look(1605, FEW, 1, 1));
    for (int batch = 0; batch < FEW; ++batch) watch.look(0, 0, 0, 1);
    CHECK(watch.look(1605, 1, 1, 1) && !watch.look(1605, 0, 0, 1));  // few entries, but many batches
}

TEST(many_open_trees_are_looked_at_at_once_if_none_has_ended) {
    RotationWatch watch(LONG_MS, FEW, MANY);
    CHECK(!watch.look(5, MANY, MANY, 0) && !watch.look(5, MANY, MANY, 0));
    CHECK(watch.look(6, MANY, MANY, 0));
    CHECK(!watch.look(6, MANY, MANY - 1, 0) && !watch.look(6, MANY, MANY, 1));
}

TEST(nothing_is_looked_for_after_a_rotation_or_a_warning) {
    RotationWatch rotated(LONG_MS, FEW, MANY), warned(LONG_MS, FEW, MANY);
    rotated.rotated(7);
    CHECK(rotated.has_time() && rotated.now_ms() == 7);
    CHECK(!warned.look(1, MANY, MANY, 0));
    warned.end();
    for (RotationWatch* watch : {&rotated, &warned}) {
        CHECK(!watch->look(8, MANY, MANY, 0) && !watch->look(5000, MANY, MANY, 0));
        CHECK(watch->now_ms() == 5000);
    }
}

TEST(a_clock_near_its_end_asks_for_nothing_too_early) {
    RotationWatch watch(LONG_MS, FEW, MANY);
    CHECK(!watch.look(INT64_MAX - 10, FEW, 1, 1) && !watch.look(INT64_MAX - 1, FEW, 1, 1));
    watch.look_again(0);
    CHECK(!watch.look(INT64_MAX - 1, FEW, 1, 1) && watch.look(INT64_MAX, FEW, 1, 1));
}

}  // namespace
