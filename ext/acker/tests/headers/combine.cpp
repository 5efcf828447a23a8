// tree_index.h, combine.h: the combiner in front of an acker.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(an_index_finds_every_entry_of_a_crowded_line_again) {
    // Hashes of one home line, then of all the lines at the end, from which entries pass over to the first ones.
    for (uint64_t upper : {uint64_t{0x12345600}, uint64_t{0xFFFFFF00}}) {
        TreeIndex index;
        std::vector<uint32_t> tags;
        for (uint64_t i = 0; i < 600; ++i) {
            const uint32_t next = static_cast<uint32_t>(tags.size());
            const uint32_t tag = TreeIndex::tag_of((upper + i % 50) << 32);
            CHECK(index.reserve(i + 1));
            CHECK(index.find_or_insert(tag, next, [&](uint32_t position) { return position == next; }) == next);
            tags.push_back(tag);
        }
        CHECK(index.nbytes() % LINE_BYTES == 0 && index.nbytes() >= tags.size() * 2 * sizeof(uint32_t));
        for (size_t entries : {tags.size(), size_t{10000}, size_t{100000}}) {
            CHECK(index.reserve(entries));
            for (uint32_t i = 0; i < tags.size(); ++i) {
                const auto is_same = [&](uint32_t position) { return position == i || position == UINT32_MAX; };
                CHECK(index.find_or_insert(tags[i], UINT32_MAX, is_same) == i);
            }
        }
    }
}

TEST(no_tag_is_that_of_a_free_slot) {
    for (uint64_t hash : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 31, UINT64_MAX}) CHECK(TreeIndex::tag_of(hash) != 0);
}

TEST(of_two_tracks_the_order_of_arrival_does_not_decide) {
    std::vector<Message> messages = {{TRACK, 1, 9, 1, 5}, {TRACK, 1, 3, 2, 6}, {OK, 1, 9, 0, 0}, {TRACK, 1, 3, 2, 7}};
    auto before = [](const Message& a, const Message& b) { return a.message_id < b.message_id; };
    std::sort(messages.begin(), messages.end(), before);
    std::vector<int64_t> chosen;
    do {
        CombineTable table;
        size_t rows = 0;
        CHECK(table.add(Columns(messages).from<Messages>(0), &rows) == CombineTable::DONE && rows == 4);
        int64_t root_id, message_id;
        int32_t task_id;
        int8_t outcome;
        CHECK(table.settle(true, {&root_id, &message_id, &task_id, &outcome, nullptr, 0}) == 1 && root_id == 1);
        chosen.push_back(message_id);
    } while (std::next_permutation(messages.begin(), messages.end(), before));
    CHECK(chosen.size() == 24 && std::count(chosen.begin(), chosen.end(), chosen[0]) == 24);
}

TEST(a_reset_makes_a_root_known_where_it_is_asked_for_and_nothing_more) {
    Columns columns(
        {{RESET_TIMEOUT, 7, 5, 0, 0}, {TRACK, 8, 1, 2, 3}, {RESET_TIMEOUT, 8, 5, 0, 0}, {TRACK, 8, 1, 2, 3}});
    for (bool resets : {false, true}) {
        CombineTable table;
        table.gather_resets(resets);
        size_t done = 0;
        CHECK(table.add(columns.from<Messages>(0), &done) == CombineTable::DONE && done == 4);
        CHECK(table.size() == (resets ? 2u : 1u) && table.duplicates() == 1);
        int64_t next[] = {0, 0}, root_id[2], value[2], track_value[2], message_id[2];
        uint8_t flags[2];
        int32_t task_id[2];
        table.write_partials(1, next, {root_id, value, flags, track_value, task_id, message_id, 2});
        CHECK(flags[table.size() - 1] == (resets ? HAS_TRACK | HAS_RESET : HAS_TRACK));
        CHECK(!resets || (root_id[0] == 7 && value[0] == 0 && flags[0] == HAS_RESET));
    }
}

TEST(a_combiner_that_gets_no_memory_keeps_what_it_has) {
    std::vector<Message> messages = stream(20000, 15000, 21);
    for (int64_t budget = 0; budget < 8; ++budget) {
        CombineTable table;
        CombinedModel model;
        size_t done = 0, rest = 0;
        Columns columns(messages);
        {
            Allocations allocations(budget);
            CHECK(table.add(columns.from<Messages>(0), &done) == CombineTable::NO_MEMORY);
        }
        for (size_t row = 0; row < done; ++row) model.add(messages[row]);
        CHECK(table.size() == model.trees.size() && table.nbytes() >= table.size() * 40);
        CHECK(table.add(columns.from<Messages>(done), &rest) == CombineTable::DONE);
        CHECK(done + rest == messages.size());
    }
}

}  // namespace
