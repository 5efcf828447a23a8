// All that the native tests need of a test framework: a check that says where it failed, and a list of test functions.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace acker::testing {

// What is being run, for the message of a check that fails: the name of a test, or the seed of a fuzz run.
inline std::string& now_running() {
    static std::string label;
    return label;
}

[[noreturn]] inline void fail(const char* file, int line, const char* condition) {
    std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    std::abort();
}

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Registered {
    Registered(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

// Runs the tests whose names hold the argument, or all; returns the exit code.
inline int run_tests(int count, char** arguments) {
    size_t run = 0;
    for (const Test& test : tests()) {
        if (count > 1 && std::string(test.name).find(arguments[1]) == std::string::npos) continue;
        now_running() = test.name;
        std::fprintf(stderr, "%s\n", test.name);
        test.run();
        ++run;
    }
    std::printf("tests=%zu\n", run);
    return run == 0;
}

}  // namespace acker::testing

#define CHECK(condition) ((condition) ? static_cast<void>(0) : acker::testing::fail(__FILE__, __LINE__, #condition))

#define TEST(name)                                                  \
    static void name();                                             \
    static const acker::testing::Registered name##_at(#name, name); \
    static void name()
