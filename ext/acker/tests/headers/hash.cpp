// What decides where a root id goes, and what a checksum is: hash.h, xxh64.h, shard_of.h.
#include <array>

#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(the_hash_gives_the_key_back) {
    Random random(1);
    for (uint64_t seed : {uint64_t{0}, SEED, UINT64_MAX}) {
        Hash hash = Hash::from_seed(seed);
        for (uint64_t key : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63, UINT64_MAX})
            CHECK(hash.key_of(hash.of(key)) == key);
        for (int i = 0; i < 1000; ++i) {
            uint64_t word = random.word();
            CHECK(hash.key_of(hash.of(word)) == word && hash.of(hash.key_of(word)) == word);
        }
    }
    for (uint64_t odd : {uint64_t{1}, uint64_t{3}, UINT64_MAX, uint64_t{0x9E3779B97F4A7C15}})
        CHECK(odd * inverse_of_odd(odd) == 1);
}

// What the hash computes is pinned, so that a change of it is a decision. SplitMix64's first outputs for the seed
// 1234567 are those of its author's test vectors.
TEST(the_hash_is_pinned) {
    uint64_t state = 1234567;
    CHECK(mix_seed(&state) == 6457827717110365317u);
    CHECK(mix_seed(&state) == 3203168211198807973u);
    Hash hash = Hash::from_seed(SEED);
    CHECK(hash.of(0) == 0x6E3E0533EC13A2C3u);
    CHECK(hash.of(1) == 0x2778DEDAD83746DAu);
    CHECK(hash.of(UINT64_MAX) == 0x61379D1294E56954u);
}

TEST(patterned_root_ids_spread_over_segments_and_lines) {
    Hash hash = Hash::from_seed(SEED);
    for (unsigned shift : {0u, 20u, 40u, 52u}) {
        std::array<unsigned, 64> segments = {}, lines = {};
        for (uint64_t i = 0; i < 4096; ++i) {
            uint64_t h = hash.of(i << shift);
            ++segments[h % 64];
            ++lines[h >> 58];
        }
        for (unsigned count : segments) CHECK(count > 20 && count < 150);
        for (unsigned count : lines) CHECK(count > 20 && count < 150);
    }
}

TEST(xxh64_has_the_values_of_its_specification) {
    auto of = [](const char* text, uint64_t seed) {
        return xxh64::of_bytes(reinterpret_cast<const uint8_t*>(text), std::strlen(text), seed);
    };
    CHECK(of("", 0) == 0xEF46DB3751D8E999u);
    CHECK(of("a", 0) == 0xD24EC4F1A98C6E5Bu);
    CHECK(of("abc", 0) == 0x44BC2CF5AD770999u);
    CHECK(of("Nobody inspects the spammish repetition", 0) == 0xFBCEA83C8A378BF1u);
    // As Spark's xxhash64(int, long) has them.
    CHECK(static_cast<int64_t>(xxh64::of_int_and_long(0, 0)) == -2984540310115537990);
    CHECK(static_cast<int64_t>(xxh64::of_int_and_long(1, 2)) == 2360248972619621018);
}

TEST(shards_are_in_range_even_and_pinned) {
    std::array<int, 7> counts = {};
    for (int64_t root = 0; root < 7000; ++root) {
        uint32_t shard = shard_of(root, 7);
        CHECK(shard < 7);
        ++counts[shard];
    }
    for (int count : counts) CHECK(count > 850 && count < 1150);
    for (int64_t root : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) CHECK(shard_of(root, 1) == 0);
    // Blocks may be stored: the next release must agree. SplitMix64 gives 0xE220A839... for the seed 0.
    CHECK(shard_of(0, 256) == 0xE2 && shard_of(0, 65536) == 0xE220);
}

}  // namespace
