// The search of one line for the slots that hold a hash, and for free slots. A portable version and one for AVX2 give
// the same answers. The macros for what compilers spell differently are here as well.
#pragma once

#include <cstdint>

#include "arena.h"

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#define ACKER_PREFETCH(address) _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0)
#define ACKER_UNLIKELY(condition) (condition)
#define ACKER_ALWAYS_INLINE __forceinline
#define ACKER_NOINLINE __declspec(noinline)
#define ACKER_TARGET_AVX2
inline unsigned acker_lowest_bit(unsigned bits) noexcept {
    unsigned long index;
    _BitScanForward(&index, bits);
    return index;
}
#define ACKER_LOWEST_BIT(bits) acker_lowest_bit(bits)
#else
#define ACKER_PREFETCH(address) __builtin_prefetch(address)
#define ACKER_UNLIKELY(condition) __builtin_expect(condition, 0)
#define ACKER_ALWAYS_INLINE __attribute__((always_inline)) inline
#define ACKER_NOINLINE __attribute__((noinline))
#define ACKER_LOWEST_BIT(bits) static_cast<unsigned>(__builtin_ctz(bits))
#endif

// ACKER_PORTABLE leaves out the code for one processor, so that tests can compile the rest alone on any machine.
#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && !defined(ACKER_PORTABLE)
#define ACKER_HAS_AVX2 1
#include <immintrin.h>
#define ACKER_TARGET_AVX2 __attribute__((target("avx2,bmi")))
#else
#define ACKER_HAS_AVX2 0
#ifndef ACKER_TARGET_AVX2
#define ACKER_TARGET_AVX2
#endif
#endif

namespace acker {

// `matches(line, h)`: bits 0 to 3 are the slots that hold the hash, bits 4 to 7 the free slots of a line that has not
// overflowed. 0: continue on the next line. The lowest bit is the slot to use. Tags are ignored, so a hash whose stored
// bits are all 0 seems to be in every empty slot: search for such a hash in another way.
inline bool stored_is_zero(uint64_t h) noexcept { return h << (64 - HASH_BITS) == 0; }

struct PortableProbe {
    static ACKER_ALWAYS_INLINE unsigned matches(const Line* line, uint64_t h) noexcept {
        unsigned match = 0, empty = 0;
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            match |= static_cast<unsigned>((line->word[slot] ^ h) << (64 - HASH_BITS) == 0) << slot;
            empty |= static_cast<unsigned>(line->word[slot] == 0) << slot;
        }
        return match | empty << SLOTS;
    }
};

#if ACKER_HAS_AVX2
struct Avx2Probe {
    ACKER_TARGET_AVX2 static inline unsigned matches(const Line* line, uint64_t h) noexcept {
        const __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(line->word));
        const __m256i others = _mm256_xor_si256(words, _mm256_set1_epi64x(static_cast<int64_t>(h)));
        const __m256i zero = _mm256_setzero_si256();
        const __m256i same = _mm256_cmpeq_epi64(_mm256_slli_epi64(others, 64 - HASH_BITS), zero);
        const __m256i empty = _mm256_cmpeq_epi64(words, zero);
        return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(same))) |
               static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(empty))) << SLOTS;
    }
};
inline bool machine_has_avx2() noexcept { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi"); }
#else
using Avx2Probe = PortableProbe;
inline bool machine_has_avx2() noexcept { return false; }
#endif

#define ACKER_TEXT_OF(number) ACKER_TEXT(number)
#define ACKER_TEXT(tokens) #tokens

inline const char* compiler() noexcept {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#elif defined(_MSC_VER)
    return "msvc " ACKER_TEXT_OF(_MSC_VER);
#else
    return "unknown";
#endif
}

}  // namespace acker
