// The text of one tuple of a tree, "root_id:tuple_id" in signed decimal, or "tuple_id" alone where nothing is tracked.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace acker {

struct EncodedId {
    int64_t root_id = 0;
    int64_t tuple_id = 0;
    bool anchored = false;
};

constexpr size_t DIGITS_MAX = 19;              // of an int64
constexpr size_t NUMBER_MAX = 1 + DIGITS_MAX;  // with its sign
constexpr size_t ENCODED_ID_MAX = NUMBER_MAX + 1 + NUMBER_MAX;

// Whether [text, end) is an int64 in at most 19 digits, leading zeros included.
inline bool parse_int64(const char* text, const char* end, int64_t* number) noexcept {
    const size_t digits = static_cast<size_t>(end - text) - (text != end && *text == '-');
    if (digits > DIGITS_MAX) return false;
    const std::from_chars_result read = std::from_chars(text, end, *number);
    return read.ec == std::errc() && read.ptr == end;
}

// Whether `text` is an encoded id; else `id` holds anything.
inline bool parse_encoded_id(const char* text, size_t size, EncodedId* id) noexcept {
    const char* end = text + size;
    const void* colon = std::memchr(text, ':', size);
    id->anchored = colon != nullptr;
    if (!id->anchored) return parse_int64(text, end, &id->tuple_id);
    const char* middle = static_cast<const char*>(colon);
    return parse_int64(text, middle, &id->root_id) && parse_int64(middle + 1, end, &id->tuple_id);
}

// Writes at most ENCODED_ID_MAX characters; returns how many.
inline size_t write_encoded_id(const EncodedId& id, char* text) noexcept {
    char* end = text;
    if (id.anchored) {
        end = std::to_chars(end, end + NUMBER_MAX, id.root_id).ptr;
        *end++ = ':';
    }
    return static_cast<size_t>(std::to_chars(end, end + NUMBER_MAX, id.tuple_id).ptr - text);
}

}  // namespace acker
