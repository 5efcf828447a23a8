// Encoded ids as text and back: encoded_id.h.
#include "../../encoded_id.h"

#include <algorithm>
#include <memory>
#include <string>

#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

bool parses(const std::string& text, EncodedId* id) {
    // On the heap and without a zero behind it, so that a sanitizer sees a look beyond the end.
    std::unique_ptr<char[]> copy(new char[text.size()]);
    std::copy(text.begin(), text.end(), copy.get());
    return parse_encoded_id(copy.get(), text.size(), id);
}

std::string written(const EncodedId& id) {
    char text[ENCODED_ID_MAX];
    return std::string(text, write_encoded_id(id, text));
}

TEST(an_encoded_id_is_the_same_after_it_was_written) {
    Random random(1);
    std::vector<int64_t> numbers = {0, 1, -1, INT64_MIN, INT64_MAX};
    for (int i = 0; i < 100; ++i) numbers.push_back(static_cast<int64_t>(random.word() >> random.below(64)));
    for (int64_t root_id : numbers)
        for (int64_t tuple_id : numbers)
            for (bool anchored : {false, true}) {
                EncodedId id;
                CHECK(parses(written({root_id, tuple_id, anchored}), &id));
                CHECK(id.anchored == anchored && id.tuple_id == tuple_id && (!anchored || id.root_id == root_id));
            }
    CHECK(written({INT64_MIN, INT64_MIN, true}).size() == ENCODED_ID_MAX);
    CHECK(written({123, -456, true}) == "123:-456" && written({123, -456, false}) == "-456");
}

TEST(an_encoded_id_may_begin_with_zeros) {
    EncodedId id;
    CHECK(parses("007:-0", &id) && id.anchored && id.root_id == 7 && id.tuple_id == 0);
    CHECK(parses("0000000000000000007", &id) && !id.anchored && id.tuple_id == 7);
    CHECK(!parses("00000000000000000007", &id) && !parses("1:00000000000000000007", &id));
    CHECK(parses("-0000000000000000007:1", &id) && id.root_id == -7);
    CHECK(!parses("-00000000000000000007:1", &id));
}

TEST(other_text_is_no_encoded_id) {
    EncodedId id;
    for (const char* text : {"",
                             "-",
                             ":",
                             "1:",
                             ":1",
                             "1:2:3",
                             "1:2 ",
                             " 1:2",
                             "+1:2",
                             "1:+2",
                             "--1",
                             "1-:2",
                             "x:1",
                             "1:x",
                             "1.5",
                             "0x1",
                             "9223372036854775808",
                             "-9223372036854775809:1",
                             "1:9223372036854775808",
                             "99999999999999999999999"})
        CHECK(!parses(text, &id));
}

}  // namespace
