// rules.h, and what ingest.h makes of single messages and of rotations.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(codes_that_name_no_kind_change_nothing) {
    for (Protocol protocol : PROTOCOLS) {
        Rules rules(protocol);
        for (unsigned finding = finding_of(KINDS, 0); finding < FINDINGS; ++finding) {
            CHECK(rules.value_mask[finding] == 0);
            for (unsigned effect : {finding * 2, finding * 2 + 1}) {
                CHECK(rules.keep[effect] == ALL && rules.keep_val[effect] == ALL);
                CHECK(rules.take[effect] == 0 && rules.set[effect] == 0);
                CHECK(rules.tally[effect] == 0 && rules.noted[effect] == 0 && rules.event[effect].reports == 0);
            }
        }
    }
}

TEST(rules_never_mix_up_tags_or_lose_who_has_passed) {
    size_t seen = 0;
    for (Protocol protocol : PROTOCOLS) {
        Rules rules(protocol);
        for (unsigned effect = 0; effect < EFFECTS; ++effect) {
            bool known = (effect / 2 & NO_ENTRY) == 0;
            ++seen;
            CHECK(!known || (rules.take[effect] & rules.keep[effect]) == 0);
            CHECK((rules.keep[effect] & OVERFLOWED) != 0);
            CHECK((rules.set[effect] & ~(TRACKED | FAILED)) == 0);
            CHECK(rules.event[effect].reports == 0 || (rules.noted[effect] == 1 && rules.keep_val[effect] == 0));
        }
        CHECK(rules.event[REJECTION].reports == 1 && rules.event[REJECTION].outcome == OUTCOME_REJECTED);
    }
    CHECK(seen == 3 * EFFECTS);
}

TEST(the_walkthrough_ends_acked_in_every_order) {
    std::vector<Message> messages = {
        {TRACK, 7, 100, 3, 42}, {OK, 7, 100 ^ 200 ^ 300, 0, 0}, {OK, 7, 300, 0, 0}, {OK, 7, 200, 0, 0}};
    auto before = [](const Message& a, const Message& b) {
        return std::tie(a.kind, a.value) < std::tie(b.kind, b.value);
    };
    std::sort(messages.begin(), messages.end(), before);
    int orders = 0;
    do {
        Checked acker;
        std::vector<Completion> finished = acker.ingest(messages, 5);
        CHECK(finished.size() == 1 && finished[0] == (Completion{7, 42, 3, OUTCOME_ACKED, 0}));
        ++orders;
    } while (std::next_permutation(messages.begin(), messages.end(), before));
    CHECK(orders == 24);
}

TEST(all_root_ids_are_legal) {
    Checked acker;
    for (int64_t root : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
        acker.ingest({{TRACK, root, root == 0 ? 1 : root, 0, root}});
        CHECK(acker.ingest({{OK, root, root == 0 ? 1 : root, 0, 0}})[0].root_id == root);
    }
}

TEST(elapsed_is_exact_to_49_days_and_never_negative) {
    constexpr int64_t DAY_MS = 24 * 3600 * 1000;
    CHECK(elapsed_ms(5, 12) == 7);
    CHECK(elapsed_ms(0xFFFFFFFF, 1) == 2);  // the tick has wrapped around
    CHECK(elapsed_ms(0, static_cast<uint32_t>(49 * DAY_MS)) == 49 * DAY_MS);
    CHECK(elapsed_ms(0, static_cast<uint32_t>(49 * DAY_MS + 1)) == 0);
    CHECK(elapsed_ms(100, 99) == 0);
    CHECK(elapsed_ms(17 * 3600 * 1000, 0) == 0);
    Checked acker;
    for (int64_t now : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX - 50, int64_t{1} << 32}) {
        acker.ingest({{TRACK, 1, 1, 0, 0}}, now);
        CHECK(acker.ingest({{OK, 1, 1, 0, 0}}, now + 50)[0].elapsed_ms == 50);
    }
}

TEST(an_untouched_tree_outlives_all_but_the_last_rotation) {
    for (unsigned buckets = 2; buckets <= BUCKETS_MAX; ++buckets) {
        for (unsigned turned = 0; turned < buckets; ++turned) {  // whichever tag is the nursery's
            Checked acker(Protocol::storm, buckets);
            for (unsigned turn = 0; turn < turned; ++turn) acker.rotate();
            acker.ingest({{TRACK, 1, 1, 2, 3}, {OK, 2, 5, 0, 0}, {FAIL, 3, 0, 0, 0}}, 10);
            for (unsigned turn = 1; turn < buckets; ++turn) CHECK(acker.rotate(20).empty());
            std::vector<Completion> expired = acker.rotate(30);
            CHECK(expired.size() == 1 && expired[0] == (Completion{1, 3, 2, OUTCOME_TIMED_OUT, 20}));
            CHECK(acker.core.counters.orphans == 2 && acker.core.arena.count() == 0);
        }
    }
}

TEST(only_what_gives_more_time_moves_to_the_nursery) {
    for (Protocol protocol : PROTOCOLS) {
        for (int8_t kind : {TRACK, ANCHOR, OK, FAIL, RESET_TIMEOUT}) {
            Checked acker(protocol, 2);
            acker.ingest({{protocol == Protocol::fsshelter ? TRACK : ANCHOR, 1, 1, 0, 0}});
            acker.rotate();
            acker.ingest({{kind, 1, 2, 0, 0}});
            bool ended = acker.core.arena.count() == 0;
            acker.rotate();
            bool refreshed = kind == RESET_TIMEOUT || protocol == Protocol::storm_09 ||
                             (kind == FAIL && protocol == Protocol::storm);
            CHECK(ended || (acker.core.arena.count() == 1) == refreshed);
        }
    }
}

TEST(a_second_track_does_nothing) {
    for (Protocol protocol : PROTOCOLS) {
        Checked acker(protocol, 2);
        acker.ingest({{TRACK, 1, 6, 1, 11}, {ANCHOR, 1, 5, 0, 0}});
        acker.rotate();
        CHECK(acker.ingest({{TRACK, 1, 6, 2, 22}}).empty());
        CHECK(acker.core.counters.duplicates == 1);
        std::vector<Completion> expired = acker.rotate();
        CHECK(expired.size() == 1 && expired[0].message_id == 11);
    }
}

TEST(a_fail_before_the_track_is_remembered) {
    Checked acker;
    CHECK(acker.ingest({{FAIL, 1, 0, 0, 0}}, 5).empty());
    CHECK(acker.ingest({{TRACK, 1, 9, 1, 2}}, 8)[0] == (Completion{1, 2, 1, OUTCOME_FAILED, 3}));
    acker.ingest({{FAIL, 2, 0, 0, 0}, {OK, 2, 9, 0, 0}});
    CHECK(acker.ingest({{TRACK, 2, 9, 1, 2}})[0].outcome == OUTCOME_ACKED);  // 0 wins
}

TEST(capacity_rejects_new_trees_and_drops_messages_about_unknown_ones) {
    for (int64_t high_water : {0, 1, 5, 100}) {
        for (Protocol protocol : PROTOCOLS) {
            Checked acker(protocol, 3, high_water);
            std::vector<Message> tracks, oks;
            for (int64_t root = 0; root < 3 * high_water + 40; ++root) {
                tracks.push_back({TRACK, root, 1, 4, root});
                oks.push_back({OK, 10000 + root, 1, 0, 0});
                oks.push_back({OK, 20000 + root, 1, 0, 0});
            }
            std::vector<Completion> finished = acker.ingest(tracks);
            CHECK(acker.core.open() == 2 * high_water + 1);
            CHECK(finished.size() == tracks.size() - static_cast<size_t>(2 * high_water + 1));
            CHECK(finished[0] == (Completion{2 * high_water + 1, 2 * high_water + 1, 4, OUTCOME_REJECTED, 0}));
            acker.ingest(oks);
            if (protocol == Protocol::fsshelter) continue;
            CHECK(static_cast<int64_t>(acker.core.arena.count()) == 4 * high_water + 1);
            CHECK(acker.core.counters.dropped > 0);
        }
    }
}

TEST(a_high_water_mark_of_any_size_does_not_overflow) {
    for (int64_t high_water : {INT64_MAX, INT64_MAX / 2, INT64_MAX / 4, INT64_MAX / 4 + 1}) {
        AckerCore core(Protocol::storm, 3, high_water, SEED, true);
        Columns columns(stream(1000, 500, 1));
        ingest(&core, columns, 0);
        CHECK(core.counters.rejected == 0 && core.counters.dropped == 0 && core.arena.count() > 0);
    }
}

}  // namespace
