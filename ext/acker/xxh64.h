// XXH64, the 64-bit hash by Yann Collet (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): the checksum
// of blocks, and Spark's xxhash64 function, which ranks TRACKs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace acker {
namespace xxh64 {

constexpr uint64_t PRIME_1 = 0x9E3779B185EBCA87ull;
constexpr uint64_t PRIME_2 = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t PRIME_3 = 0x165667B19E3779F9ull;
constexpr uint64_t PRIME_4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t PRIME_5 = 0x27D4EB2F165667C5ull;

inline uint64_t rotate(uint64_t word, int bits) noexcept { return (word << bits) | (word >> (64 - bits)); }

inline uint64_t round(uint64_t lane, uint64_t word) noexcept { return rotate(lane + word * PRIME_2, 31) * PRIME_1; }

inline uint64_t merge_lane(uint64_t hash, uint64_t lane) noexcept {
    return (hash ^ round(0, lane)) * PRIME_1 + PRIME_4;
}

inline uint64_t avalanche(uint64_t hash) noexcept {
    hash = (hash ^ (hash >> 33)) * PRIME_2;
    hash = (hash ^ (hash >> 29)) * PRIME_3;
    return hash ^ (hash >> 32);
}

// Input words are little-endian by definition. Compilers turn this loop into one load.
inline uint64_t word_at(const uint8_t* bytes, size_t count) noexcept {
    uint64_t word = 0;
    for (size_t i = 0; i < count; ++i) word |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return word;
}

inline uint64_t add_word(uint64_t hash, uint64_t word) noexcept {
    return rotate(hash ^ round(0, word), 27) * PRIME_1 + PRIME_4;
}

inline uint64_t of_bytes(const uint8_t* bytes, size_t size, uint64_t seed) noexcept {
    const uint8_t* end = bytes + size;
    uint64_t hash = seed + PRIME_5;
    if (size >= 32) {
        uint64_t lanes[4] = {seed + PRIME_1 + PRIME_2, seed + PRIME_2, seed, seed - PRIME_1};
        for (; end - bytes >= 32; bytes += 32)
            for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = round(lanes[lane], word_at(bytes + 8 * lane, 8));
        hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
        for (uint64_t lane : lanes) hash = merge_lane(hash, lane);
    }
    hash += size;
    for (; end - bytes >= 8; bytes += 8) hash = add_word(hash, word_at(bytes, 8));
    if (end - bytes >= 4) {
        hash = rotate(hash ^ (word_at(bytes, 4) * PRIME_1), 23) * PRIME_2 + PRIME_3;
        bytes += 4;
    }
    for (; bytes < end; ++bytes) hash = rotate(hash ^ (*bytes * PRIME_5), 11) * PRIME_1;
    return avalanche(hash);
}

// Spark's xxhash64(int column, long column): each column hashed with the previous hash as the seed.
inline uint64_t of_int_and_long(int32_t first, int64_t second) noexcept {
    constexpr uint64_t SPARK_SEED = 42;
    uint64_t hash = SPARK_SEED + PRIME_5 + 4;
    hash = avalanche(rotate(hash ^ (static_cast<uint32_t>(first) * PRIME_1), 23) * PRIME_2 + PRIME_3);
    return avalanche(add_word(hash + PRIME_5 + 8, static_cast<uint64_t>(second)));
}

}  // namespace xxh64
}  // namespace acker
