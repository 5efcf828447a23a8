// CRC-32 as zlib computes it: the stable hash of a text, by which a fields grouping chooses a task.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace acker {

// The remainders of all bytes, for the reflected polynomial of ISO 3309.
inline constexpr std::array<uint32_t, 256> CRC32_TABLE = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t remainder = byte;
        for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? 0xEDB88320u : 0);
        table[byte] = remainder;
    }
    return table;
}();

// One byte at a time: keys are short, and a call into zlib takes longer than most of them.
// `start` is the CRC-32 of what comes before.
inline uint32_t crc32_of(const char* text, size_t size, uint32_t start = 0) noexcept {
    uint32_t remainder = ~start;
    for (size_t index = 0; index < size; ++index) {
        remainder = (remainder >> 8) ^ CRC32_TABLE[(remainder ^ static_cast<unsigned char>(text[index])) & 0xFF];
    }
    return ~remainder;
}

}  // namespace acker
