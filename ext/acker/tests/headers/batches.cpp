// ingest.h: batches of any size, selection and content.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(one_batch_equals_any_split_of_it) {
    std::vector<Message> messages = stream(5000, 300, 7);
    for (Protocol protocol : PROTOCOLS) {
        for (bool avx2 : {true, false}) {
            for (size_t size : {1u, 15u, 16u, 17u, 511u, 512u, 513u, 5000u}) {
                Checked acker(protocol, 3, std::nullopt, avx2);
                for (size_t first = 0; first < messages.size(); first += size) {
                    std::vector<Message> some(
                        messages.begin() + static_cast<std::ptrdiff_t>(first),
                        messages.begin() + static_cast<std::ptrdiff_t>(std::min(first + size, messages.size())));
                    std::vector<Completion> expected;
                    for (const Message& message : some) acker.model.apply(message, 0, &expected);
                    CHECK(ingest(&acker.core, Columns(some), 0) == expected);
                    check_numbers(acker.core, acker.model);
                }
                acker.check();
            }
        }
    }
}

TEST(a_selection_is_a_batch_of_its_rows) {
    std::vector<Message> messages = stream(3 * STRETCH_ROWS + 7, 300, 5);
    for (bool avx2 : {true, false}) {
        for (bool with_ids : {true, false}) {
            AckerCore whole(Protocol::storm, 3, -1, SEED, avx2), chosen(Protocol::storm, 3, -1, SEED, avx2);
            for (int64_t now : {5, 9}) {
                std::vector<Completion> expected = ingest(&whole, Columns(messages, with_ids), now);
                CHECK(ingest(&chosen, Scattered(messages, with_ids), now) == expected);
            }
            CHECK(same(whole.counters, chosen.counters) && chosen.check_invariants());
        }
    }
    AckerCore core(Protocol::storm, 3, -1, SEED, true);
    Messages nothing = Columns(messages).from<Messages>(0);
    uint32_t row = 0;
    nothing.rows = 0;
    nothing.selection = &row;
    CHECK(core.ingest(nothing, 0) == 0 && core.arena.count() == 0);
}

TEST(a_root_whose_stored_hash_is_zero_is_a_root_like_others) {
    Hash hash = Hash::from_seed(SEED);
    for (bool avx2 : {true, false}) {
        Checked acker(Protocol::storm, 3, std::nullopt, avx2);
        std::vector<Message> messages = stream(700, 100, 3);
        for (size_t row = 0; row < messages.size(); row += 90)
            messages[row].root_id = static_cast<int64_t>(hash.key_of(uint64_t{row % 5} << HASH_BITS));
        acker.ingest(messages);
        acker.ingest({{OK, static_cast<int64_t>(hash.key_of(uint64_t{99} << HASH_BITS)), 5, 0, 0}});
        CHECK(acker.core.arena.find(uint64_t{99} << HASH_BITS) && !acker.core.arena.find(uint64_t{98} << HASH_BITS));
    }
}

TEST(the_line_after_a_full_one_holds_other_roots) {
    Hash hash = Hash::from_seed(SEED);
    auto root = [&](uint64_t line, uint64_t stored) {
        return static_cast<int64_t>(hash.key_of(line << HASH_BITS | stored));
    };
    for (bool avx2 : {true, false}) {
        Checked acker(Protocol::storm, 3, std::nullopt, avx2);
        std::vector<Message> messages = {{TRACK, root(8, 5), 1, 0, 0}};  // as much of it is stored as of the last one
        for (uint64_t stored : {1u, 2u, 3u, 4u, 5u}) messages.push_back({TRACK, root(7, stored), 2, 0, 0});
        acker.ingest(messages);
        CHECK(acker.core.arena.count() == 6);
    }
}

TEST(a_batch_may_be_about_one_tree_alone) {
    std::vector<Message> messages(3000, Message{OK, 5, 1, 0, 0});
    for (size_t row = 0; row < messages.size(); row += 7) messages[row].kind = TRACK;
    Checked acker;
    CHECK(acker.ingest(messages).size() > 300);
}

TEST(a_batch_without_rows_does_nothing) {
    Checked acker;
    CHECK(acker.ingest({}).empty() && acker.core.arena.bytes() == 0);
}

TEST(columns_that_are_left_out_read_0) {
    for (bool avx2 : {true, false}) {
        AckerCore core(Protocol::storm, 3, -1, SEED, avx2);
        Columns columns({{TRACK, 1, 0, 5, 6}, {OK, 2, 7, 5, 6}, {TRACK, 2, 7, 5, 6}}, false);
        std::vector<Completion> finished = ingest(&core, columns, 0);
        CHECK(finished.size() == 2 && finished[0] == (Completion{1, 0, 0, OUTCOME_ACKED, 0}));
        CHECK(finished[1] == (Completion{2, 0, 0, OUTCOME_ACKED, 0}));
    }
}

TEST(every_allocation_of_a_batch_may_fail) {
    const Columns columns(stream(60000, 25000, 9));
    Checked expected;
    const std::vector<Completion> finished = expected.ingest(stream(60000, 25000, 9));
    for (int64_t budget = 0; budget < 14; ++budget) {
        for (bool avx2 : {true, false}) {
            AckerCore core(Protocol::storm, 3, -1, SEED, avx2);
            CHECK(ingest(&core, columns, 0, budget) == finished);
            check_numbers(core, expected.model);
            check_entries(&core, expected.model);
        }
    }
}

// Columns are checked before, but another thread may write to them since: no memory but the acker's may suffer.
TEST(codes_that_nobody_has_checked_do_no_harm) {
    std::vector<Message> messages = stream(4000, 200, 11);
    Random random(12);
    for (Message& message : messages) message.kind = static_cast<int8_t>(random.word());
    for (bool avx2 : {true, false}) {
        AckerCore core(Protocol::storm, 3, 20, SEED, avx2);
        CHECK(core.ingest(Columns(messages).from<Messages>(0), 0) == messages.size());
    }
}

TEST(the_first_bad_row_is_found) {
    Random random(13);
    for (size_t rows : {0u, 1u, 511u, 512u, 513u, 2000u}) {
        for (int round = 0; round < 40; ++round) {
            std::vector<int8_t> kind(rows);
            std::vector<int32_t> task_id(rows);
            for (int8_t& code : kind) code = static_cast<int8_t>(random.below(KINDS));
            for (int32_t& task : task_id) task = static_cast<int32_t>(random.below(5)) * (INT32_MAX / 4);
            for (uint64_t bad = rows == 0 ? 0 : random.below(3); bad > 0; --bad) {
                constexpr int8_t BAD[] = {5, 7, 127, -1, -128};
                if (random.one_in(2))
                    kind[random.below(rows)] = BAD[random.below(5)];
                else
                    task_id[random.below(rows)] = random.one_in(2) ? -1 : INT32_MIN;
            }
            for (const int32_t* tasks :
                 {static_cast<const int32_t*>(task_id.data()), static_cast<const int32_t*>(nullptr)}) {
                size_t expected = 0, tracks = 0;
                while (expected < rows && kind[expected] >= 0 && kind[expected] < 5 && !(tasks && tasks[expected] < 0))
                    ++expected;
                CHECK(first_bad_row(kind.data(), tasks, rows, &tracks) == expected);
                if (expected == rows)
                    CHECK(static_cast<std::ptrdiff_t>(tracks) == std::count(kind.begin(), kind.end(), TRACK));
            }
        }
    }
}

TEST(finished_rows_survive_growth_and_change_hands) {
    AckerCore core(Protocol::storm, 3, -1, SEED, true);
    std::vector<Message> messages;
    for (int64_t root = 0; root < 50000; ++root) messages.push_back({TRACK, root, 0, 1, -root});
    CHECK(core.ingest(Columns(messages).from<Messages>(0), 0) == messages.size());
    CHECK(core.finished.rows == messages.size() && core.finished.capacity > Finished::CAPACITY_KEPT);
    CHECK(core.finished.bytes() >= messages.size() * 29);
    for (size_t row = 0; row < core.finished.rows; ++row) {
        CHECK(core.finished.root_id[row] == static_cast<int64_t>(row));
        CHECK(core.finished.message_id[row] == -static_cast<int64_t>(row));
    }
    {
        Allocations none(0);
        CHECK(!core.finished.reserve(core.finished.capacity + 1) && core.finished.rows == messages.size());
    }
    const int64_t* roots = core.finished.root_id;
    void* block = core.finished.hand_over();
    CHECK(block == roots && core.finished.rows == 0 && core.finished.capacity == 0 && roots[49999] == 49999);
    release(block);
    CHECK(core.ingest(Columns(messages).from<Messages>(0), 0) == messages.size());
    core.finished.give_back();
    CHECK(core.finished.capacity == 0 && core.finished.rows == 0);
}

}  // namespace
