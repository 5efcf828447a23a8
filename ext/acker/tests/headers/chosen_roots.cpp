// arena.h: root ids that somebody has chosen so that they crowd.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(chosen_root_ids_do_not_make_the_arena_grow) {
    for (size_t count : {size_t{5}, size_t{129}, size_t{1000}}) {
        for (bool avx2 : {true, false}) {
            Checked acker(Protocol::storm, 3, std::nullopt, avx2);
            acker.ingest(chosen(count, SEED));
            CHECK(acker.core.arena.bytes() <= bytes_allowed(count));
            CHECK(acker.core.arena.probes() <= static_cast<int64_t>(2 * count));
            // Who knows the seeds that come next, too, makes the acker slow and no larger.
            uint64_t seed = SEED;
            for (uint64_t line = 0; line < 9; ++line)
                acker.ingest(chosen(count, seed = Hash::seed_after(seed), LINES_MAX - 1 - line));
            CHECK(acker.core.arena.bytes() <= bytes_allowed(10 * count));
            std::vector<Message> oks = chosen(count, SEED);
            for (Message& message : oks) message.kind = OK;
            CHECK(acker.ingest(oks).size() == count);
        }
    }
}

TEST(chosen_root_ids_do_not_make_a_large_arena_grow) {
    Checked acker;
    std::vector<Message> others;
    for (int64_t root = 0; root < 30000; ++root) others.push_back({TRACK, root, 7, 3, root});
    acker.ingest(others);
    size_t bytes = acker.core.arena.bytes();
    acker.ingest(chosen(400, SEED));  // near the limit of the load growing comes first, and ends
    CHECK(acker.core.arena.bytes() <= 2 * bytes);
    for (Message& message : others) message.kind = OK;
    acker.ingest(others);
    bytes = acker.core.arena.bytes();
    uint64_t seed = SEED;
    for (int turn = 0; turn < 3; ++turn) acker.ingest(chosen(400, seed = Hash::seed_after(seed), 7));
    CHECK(acker.core.arena.bytes() == bytes);
    for (unsigned turn = 0; turn < 3; ++turn) acker.rotate();
}

TEST(an_arena_without_memory_for_chosen_root_ids_stays_as_it_was) {
    size_t failures = 0;
    for (int64_t budget = 0; budget < 40; ++budget) {
        Checked acker;
        while (acker.core.arena.lines_a_segment() < LINES_MAX) CHECK(acker.core.arena.grow());
        CHECK(acker.core.finished.reserve(2 * STRETCH_ROWS));
        Columns columns(chosen(300, SEED));
        {
            Allocations allocations(budget);
            failures += acker.core.ingest(columns.from<Messages>(0), 0) < 300;
        }
        CHECK(acker.core.check_invariants());
        CHECK(acker.core.arena.count() >= 128);  // what one line has in its reach
        CHECK(acker.core.arena.segments() == 1);
    }
    CHECK(failures >= 5 && failures < 35);
}

// Else two ackers of one seed would often differ in the order of what times out, and none be as fast as it should.
TEST(root_ids_that_nobody_chose_stay_under_their_seed) {
    size_t moved = 0;
    std::vector<Message> messages;
    for (int64_t root = 0; root < 9000; ++root) messages.push_back({TRACK, root, 7, 3, root});
    const Columns columns(messages);
    for (uint64_t seed = 0; seed < 300; ++seed) {
        AckerCore core(Protocol::storm, 3, -1, seed, true);
        Arena fresh(seed);
        ingest(&core, columns, 0);
        moved += core.arena.hash(1) != fresh.hash(1);
        CHECK(core.arena.segments() == 2);
    }
    CHECK(moved < 15);
}

// A smaller segment in the place of the only one is made under the same seed, and gives up where that does not do.
TEST(shrinking_does_not_grow_where_root_ids_crowd) {
    Arena arena(SEED);
    while (arena.lines_a_segment() < LINES_MAX) CHECK(arena.grow());
    std::vector<uint64_t> hashes;
    for (uint64_t line : {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 4095, 4094})
        for (uint64_t i = 0; i < 10; ++i) hashes.push_back(line << (64 - LINE_BITS_MAX) | i << 24 | 5);
    for (uint64_t h : hashes) insert(&arena, h);
    size_t bytes = arena.bytes();
    arena.shrink(SIZE_MAX);
    CHECK(arena.bytes() <= bytes && arena.segments() == 1);
    check_holds(&arena, hashes);
}

}  // namespace
