// probe.h: what a line holds, with AVX2 and without.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(both_probes_see_what_is_there) {
    Random random(3);
    bool avx2 = machine_has_avx2();
    for (int round = 0; round < 20000; ++round) {
        alignas(LINE_BYTES) Line line = {};
        uint64_t one = random.word() & HASH_MASK, other = one ^ uint64_t{1} << random.below(2) * (HASH_BITS - 1);
        uint64_t hashes[] = {HASH_MASK, one, other};
        uint64_t wanted = hashes[random.below(3)], high = random.word() & ~HASH_MASK,
                 mark = random.below(2) * OVERFLOWED;
        unsigned match = 0, empty = 0;
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            uint64_t flags = random.below(4) * FAILED, tag = random.below(2) * random.below(16);
            uint64_t hash = hashes[random.below(3)];
            line.word[slot] = (tag == 0 ? 0 : tag << TAG_SHIFT | flags | hash) | mark;
            match |= static_cast<unsigned>(tag != 0 && hash == wanted) << slot;
            empty |= static_cast<unsigned>(tag == 0) << slot;
        }
        if (wanted == 0) continue;
        unsigned expected = match | (mark != 0 ? 0 : empty << SLOTS);
        CHECK(PortableProbe::matches(&line, wanted | high) == expected);
        if (avx2) CHECK(Avx2Probe::matches(&line, wanted | high) == expected);
    }
}

TEST(only_a_hash_without_a_stored_bit_is_told_to_be_one) {
    CHECK(stored_is_zero(0) && stored_is_zero(~HASH_MASK) && stored_is_zero(OVERFLOWED));
    for (unsigned bit = 0; bit < HASH_BITS; ++bit) CHECK(!stored_is_zero(~HASH_MASK | uint64_t{1} << bit));
}

}  // namespace
