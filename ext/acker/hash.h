// The hash of root ids. It is bijective on 64 bits, so a table may store the hash and still recover the root id.
#pragma once

#include <cstdint>

namespace acker {

// SplitMix64's finaliser: turns one seed into as many independent-looking words as a table needs.
inline uint64_t mix_seed(uint64_t* state) noexcept {
    uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// The inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the number of correct bits.
inline uint64_t inverse_of_odd(uint64_t odd) noexcept {
    uint64_t inverse = odd;  // correct to 3 bits, since odd * odd = 1 modulo 8
    for (int step = 0; step < 5; ++step) inverse *= 2 - odd * inverse;
    return inverse;
}

// xor, multiply, fold, multiply, fold. The constants come from `seed`: without it nobody can choose root ids that share
// a line. Without the last fold the low bits, which choose the segment, are weak: root ids i << 40 would all fall
// into one segment of 64.
struct Hash {
    uint64_t flip = 0;
    uint64_t first = 1;
    uint64_t second = 1;
    uint64_t first_inverse = 1;
    uint64_t second_inverse = 1;

    static Hash from_seed(uint64_t seed) noexcept {
        uint64_t state = seed;
        Hash hash;
        hash.flip = mix_seed(&state);
        hash.first = mix_seed(&state) | 1;
        hash.second = mix_seed(&state) | 1;
        hash.first_inverse = inverse_of_odd(hash.first);
        hash.second_inverse = inverse_of_odd(hash.second);
        return hash;
    }

    // The seed of the next hash to try: the number after those that `from_seed` uses.
    static uint64_t seed_after(uint64_t seed) noexcept {
        for (int used = 0; used < 3; ++used) mix_seed(&seed);
        return mix_seed(&seed);
    }

    uint64_t of(uint64_t key) const noexcept {
        uint64_t h = (key ^ flip) * first;
        h ^= h >> 32;
        h *= second;
        return h ^ (h >> 32);
    }

    uint64_t key_of(uint64_t h) const noexcept {
        h ^= h >> 32;
        h *= second_inverse;
        h ^= h >> 32;
        return (h * first_inverse) ^ flip;
    }
};

}  // namespace acker
