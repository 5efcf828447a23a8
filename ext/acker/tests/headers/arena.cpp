// arena.h: entries come, are found, make others move on, and go.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(an_empty_arena_holds_nothing_and_takes_no_memory) {
    Arena arena(SEED);
    CHECK(arena.bytes() == 0 && arena.count() == 0 && !arena.find(7) && !arena.insert(7, FLAGS) && !arena.has_room(1));
    arena.shrink(SIZE_MAX);
    CHECK(arena.check_invariants());
    Allocations none(0);
    CHECK(!arena.grow());
}

TEST(entries_keep_their_values_while_the_arena_doubles_and_splits) {
    Arena arena(SEED);
    std::vector<uint64_t> hashes;
    size_t most = 0;
    for (uint64_t key = 0; key < 60000; ++key) {
        hashes.push_back(arena.hash(key));
        insert(&arena, hashes.back());
        most = std::max(most, arena.slots());
        CHECK(arena.count() * 100 <= arena.slots() * 68);  // as the comment on set_limit says
        if (key == 200 || key == 3000 || key == 7500 || key == 20000) check_holds(&arena, hashes);
    }
    CHECK(arena.lines_a_segment() == LINES_MAX && arena.segments() > 4 && arena.slots() == most);
    CHECK(arena.bytes() >= arena.slots() * 32);
    check_holds(&arena, hashes);
    // How well it spreads is counted: lines visited by a look-up.
    CHECK(arena.probes() < static_cast<int64_t>(hashes.size() * 12 / 10));
    arena.each([&](uint64_t h, Ref, Cold*) {
        CHECK(arena.hash(arena.root_of(h)) == h && arena.root_of(h) < 60000);
        return true;
    });
}

TEST(a_line_that_overflows_is_marked_until_the_last_who_has_passed_is_gone) {
    for (uint64_t line : {uint64_t{0}, uint64_t{100}, uint64_t{LINES_MAX - 2}, uint64_t{LINES_MAX - 1}}) {
        for (size_t count : {4u, 5u, 11u, 12u, 13u, 40u, 120u}) {
            Arena arena(SEED);
            std::vector<uint64_t> hashes = crowd(count, line);
            for (uint64_t h : hashes) insert(&arena, h);
            check_holds(&arena, hashes);
            CHECK(arena.count() <= 4 || arena.lines_a_segment() == LINES_MAX);
            for (uint64_t round = 0; !hashes.empty(); ++round) {  // from the front, the back and the middle in turn
                size_t which = round % 3 == 0 ? 0 : round % 3 == 1 ? hashes.size() - 1 : hashes.size() / 2;
                uint64_t h = hashes[which];
                arena.erase(h, arena.find(h));
                CHECK(!arena.find(h));
                hashes.erase(hashes.begin() + static_cast<std::ptrdiff_t>(which));
                if (round % 7 == 0 || hashes.size() < 12) check_holds(&arena, hashes);
            }
            // No tombstones: a home line that nobody passes over takes an entry again.
            uint64_t h = line << (64 - LINE_BITS_MAX);
            insert(&arena, h);
            CHECK(arena.probes() == 1);
        }
    }
}

TEST(the_last_entry_in_reach_keeps_its_home_line_marked) {
    Arena arena(SEED);
    std::vector<uint64_t> hashes = crowd(SLOTS * (DISPLACEMENT_MAX + 1), LINES_MAX - 9);
    for (uint64_t h : hashes) insert(&arena, h);
    CHECK(arena.segments() == 1);
    for (; hashes.size() > 1; hashes.erase(hashes.begin())) {
        arena.erase(hashes.front(), arena.find(hashes.front()));
        CHECK(arena.find(hashes.back()));
    }
    check_holds(&arena, hashes);
    CHECK(arena.probes() == static_cast<int64_t>(DISPLACEMENT_MAX + 1));
}

TEST(a_line_that_takes_no_more_makes_the_arena_grow) {
    Arena arena(SEED);
    std::vector<uint64_t> hashes = crowd(300, LINES_MAX - 7);
    for (uint64_t h : hashes) insert(&arena, h);
    CHECK(arena.segments() >= 3);  // a segment takes 32 lines of 4 from one home
    check_holds(&arena, hashes);
    for (int step = 0; step < 6; ++step) {  // crowded segments split too
        CHECK(arena.grow());
        check_holds(&arena, hashes);
    }
}

// Lines that are full of entries of their own, as many as an entry can pass over, and one that comes too late for them.
TEST(an_entry_that_finds_no_slot_makes_others_move_on) {
    for (uint64_t first : {uint64_t{100}, uint64_t{LINES_MAX - 7}}) {
        Arena arena(SEED);
        while (arena.lines_a_segment() < LINES_MAX) CHECK(arena.grow());
        std::vector<uint64_t> hashes;
        for (uint64_t back = 0; back <= DISPLACEMENT_MAX; ++back) {
            for (uint64_t h : crowd(SLOTS, (first + back) % LINES_MAX)) {
                insert(&arena, h);
                hashes.push_back(h);
            }
        }
        std::vector<uint64_t> late = crowd(SLOTS + 40, first);
        for (uint64_t h : std::vector<uint64_t>(late.begin() + SLOTS, late.end())) {
            CHECK(!arena.insert(h, FLAGS) && arena.make_way(h));
            insert(&arena, h);
            hashes.push_back(h);
            check_holds(&arena, hashes);
        }
        CHECK(arena.segments() == 1);
        // Who has moved on can be taken away like others, with the marks of those whom it passed.
        for (; hashes.size() > 1; hashes.erase(hashes.begin())) arena.erase(hashes[0], arena.find(hashes[0]));
        check_holds(&arena, hashes);
    }
    Arena crowded(SEED);
    std::vector<uint64_t> hashes = crowd(SLOTS * (DISPLACEMENT_MAX + 1), 5);
    for (uint64_t h : hashes) insert(&crowded, h);
    CHECK(!crowded.make_way(hashes[0]));  // all of one home: nobody can go further
}

TEST(trees_that_must_move_on_are_not_lost) {
    Hash hash = Hash::from_seed(SEED);
    for (bool avx2 : {true, false}) {
        Checked acker(Protocol::storm, 3, std::nullopt, avx2);
        while (acker.core.arena.lines_a_segment() < LINES_MAX) CHECK(acker.core.arena.grow());
        std::vector<Message> messages;
        for (uint64_t back = 0; back <= DISPLACEMENT_MAX + 3; ++back) {
            // The last ones are of the first line again, which has no slot in reach any more.
            for (uint64_t h :
                 crowd(back <= DISPLACEMENT_MAX ? SLOTS : 2 * SLOTS, back <= DISPLACEMENT_MAX ? back : 0)) {
                uint64_t root = hash.key_of(h + back);
                messages.push_back({TRACK, static_cast<int64_t>(root), 6, 3, static_cast<int64_t>(messages.size())});
            }
        }
        acker.ingest(messages);
        CHECK(acker.core.arena.segments() == 1);
        for (Message& message : messages) message = {OK, message.root_id, 6, 0, 0};
        CHECK(acker.ingest(messages).size() == messages.size());
    }
}

TEST(each_stops_when_told_and_clear_empties) {
    Arena arena(SEED);
    for (uint64_t key = 0; key < 100; ++key) insert(&arena, arena.hash(key));
    int visited = 0;
    arena.each([&](uint64_t, Ref, Cold*) { return ++visited < 10; });
    CHECK(visited == 10);
    arena.clear();
    CHECK(arena.count() == 0 && arena.bytes() == 0 && arena.check_invariants());
    insert(&arena, 5);
    CHECK(arena.count() == 1);
}

}  // namespace
