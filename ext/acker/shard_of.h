// The shard that owns a root id, abs(remainder(root_id, n)) of docs/protocol.md, computed without a division; and the
// selection of the rows of a batch that belong to one shard.
#pragma once

#include <cstddef>
#include <cstdint>

#include "probe.h"

namespace acker {

// The high half of the product.
inline uint64_t multiply_high(uint64_t a, uint64_t b) noexcept {
#if defined(_MSC_VER) && !defined(__clang__)
    return __umulh(a, b);
#else
    __extension__ typedef unsigned __int128 uint128;
    return static_cast<uint64_t>(static_cast<uint128>(a) * b >> 64);
#endif
}

class ShardOf {
  public:
    // n >= 1, as an int64 holds it.
    explicit ShardOf(uint64_t n) noexcept : n_(n), power_of_two_((n & (n - 1)) == 0) {
        unsigned bits = 0;
        while (uint64_t{1} << bits < n) ++bits;
        if (power_of_two_) return;
        // With m = ceil(2^(63 + bits) / n), x * m >> (63 + bits) is x / n for every x <= 2^63: m is less than 1 too
        // large, n times that is less than 2^bits, and so what is too much in the product never reaches the next whole
        // number. n is no power of two, so m has exactly 64 bits. It is found by long division.
        uint64_t quotient = 0, rest = 1;
        for (unsigned bit = 0; bit < 63 + bits; ++bit) {
            rest *= 2;
            quotient = quotient * 2 + (rest >= n);
            rest -= rest >= n ? n : 0;
        }
        reciprocal_ = quotient + 1;
        shift_ = bits - 1;
    }

    uint64_t count() const noexcept { return n_; }
    bool power_of_two() const noexcept { return power_of_two_; }

    uint64_t operator()(int64_t root_id) const noexcept {
        return power_of_two_ ? of<true>(root_id) : of<false>(root_id);
    }

    template <bool POWER_OF_TWO>
    uint64_t of(int64_t root_id) const noexcept {
        uint64_t negative = 0 - static_cast<uint64_t>(root_id < 0);
        uint64_t size = (static_cast<uint64_t>(root_id) ^ negative) - negative;  // 2^63 for INT64_MIN
        if (POWER_OF_TWO) return size & (n_ - 1);
        return size - (multiply_high(size, reciprocal_) >> shift_) * n_;
    }

  private:
    uint64_t n_;
    uint64_t reciprocal_ = 0;
    unsigned shift_ = 0;
    bool power_of_two_;
};

// Appends the numbers of the rows [first, end) of one shard to the `selected` ones in `selection`; returns how many
// there are then. Branch-free: a row decides only where the next number goes.
template <bool POWER_OF_TWO>
size_t select_rows(const ShardOf& shard_of, const int64_t* root_id, size_t first, size_t end, uint64_t shard,
                   uint32_t* selection, size_t selected) noexcept {
    for (size_t row = first; row < end; ++row) {
        selection[selected] = static_cast<uint32_t>(row);
        selected += shard_of.of<POWER_OF_TWO>(root_id[row]) == shard;
    }
    return selected;
}

constexpr size_t ROWS_AT_ONCE = 8;  // by AVX2

#if ACKER_HAS_AVX2
// For every set of eight rows, as bits: their numbers in ascending order, and their count.
struct Rows8 {
    uint8_t positions[1 << ROWS_AT_ONCE][ROWS_AT_ONCE] = {};
    uint8_t count[1 << ROWS_AT_ONCE] = {};

    constexpr Rows8() noexcept {
        for (unsigned rows = 0; rows < 1 << ROWS_AT_ONCE; ++rows)
            for (uint8_t row = 0; row < ROWS_AT_ONCE; ++row)
                if ((rows >> row & 1) != 0) positions[rows][count[rows]++] = row;
    }
};

inline constexpr Rows8 ROWS_8;

// For a power of two, with `mask` one less; processes as many rows as fill whole steps.
ACKER_TARGET_AVX2 inline size_t select_rows_avx2(uint64_t mask, const int64_t* root_id, size_t rows, uint64_t shard,
                                                 uint32_t* selection) noexcept {
    const __m256i all_bits = _mm256_set1_epi64x(static_cast<int64_t>(mask));
    const __m256i wanted = _mm256_set1_epi64x(static_cast<int64_t>(shard));
    auto matches = [&](const int64_t* four) ACKER_TARGET_AVX2 {
        __m256i roots = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(four));
        __m256i negative = _mm256_cmpgt_epi64(_mm256_setzero_si256(), roots);
        __m256i sizes = _mm256_sub_epi64(_mm256_xor_si256(roots, negative), negative);
        __m256i same = _mm256_cmpeq_epi64(_mm256_and_si256(sizes, all_bits), wanted);
        return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(same)));
    };
    size_t selected = 0;
    for (size_t row = 0; row + ROWS_AT_ONCE <= rows; row += ROWS_AT_ONCE) {
        unsigned found = matches(root_id + row) | matches(root_id + row + 4) << 4;
        __m128i positions = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(ROWS_8.positions[found]));
        __m256i numbers = _mm256_add_epi32(_mm256_cvtepu8_epi32(positions), _mm256_set1_epi32(static_cast<int>(row)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(selection + selected), numbers);
        selected += ROWS_8.count[found];
    }
    return selected;
}
#endif

// Writes the numbers of the rows of one shard to `selection`, which needs room for all rows; returns how many.
inline size_t select_rows(const ShardOf& shard_of, const int64_t* root_id, size_t rows, uint64_t shard,
                          uint32_t* selection, bool avx2) noexcept {
    if (!shard_of.power_of_two()) return select_rows<false>(shard_of, root_id, 0, rows, shard, selection, 0);
    size_t selected = 0, first = 0;
#if ACKER_HAS_AVX2
    if (avx2) {
        selected = select_rows_avx2(shard_of.count() - 1, root_id, rows, shard, selection);
        first = rows - rows % ROWS_AT_ONCE;
    }
#else
    static_cast<void>(avx2);
#endif
    return select_rows<true>(shard_of, root_id, first, rows, shard, selection, selected);
}

}  // namespace acker
