// The stable hash of numbers: CRC-32 over Python's hash, which the language defines by value.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "crc32.h"

namespace acker {

inline uint32_t stable_hash_of_bits(uint64_t bits) noexcept {
    char bytes[8];
    for (char& byte : bytes) {
        byte = static_cast<char>(bits & 0xFF);
        bits >>= 8;
    }
    return crc32_of(bytes, sizeof bytes);
}

// Python reduces numbers modulo this prime, so that equal numbers of all types have one hash.
constexpr uint64_t NUMBER_MODULUS = (uint64_t{1} << 61) - 1;

inline uint32_t stable_hash_of_reduced(uint64_t reduced, bool negative) noexcept {
    uint64_t hash = negative ? uint64_t{0} - reduced : reduced;
    if (hash == ~uint64_t{0}) hash = ~uint64_t{1};  // -1 means an error in Python, so the hash of -1 is -2
    return stable_hash_of_bits(hash);
}

inline uint32_t stable_hash_of_number(int64_t value) noexcept {
    const uint64_t size = value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    return stable_hash_of_reduced(size % NUMBER_MODULUS, value < 0);
}

inline uint32_t stable_hash_of_number(uint64_t value) noexcept {
    return stable_hash_of_reduced(value % NUMBER_MODULUS, false);
}

inline uint32_t stable_hash_of_number(double value) noexcept {
    if (std::isnan(value)) return 0x7FC00000u;
    if (std::isinf(value)) return stable_hash_of_reduced(314159, value < 0);  // sys.hash_info.inf
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(value), &exponent);
    const auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, 53));
    // Times a power of two is a rotation of 61 bits, since 2**61 is 1 modulo the prime.
    const int turn = ((exponent - 53) % 61 + 61) % 61;
    const uint64_t turned = turn == 0 ? mantissa : ((mantissa << turn) & NUMBER_MODULUS) | (mantissa >> (61 - turn));
    return stable_hash_of_reduced(turned, value < 0);
}

}  // namespace acker
