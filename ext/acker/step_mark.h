// Whether an executor is inside a step: written by its thread, and read by one that waits without Python.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace acker {

struct StepMark {
    // The thread inside a step, and the one that runs the executor's coroutines between steps; 0: none.
    std::atomic<unsigned long> stepping{0};
    std::atomic<unsigned long> resting{0};
    // How many steps have begun.
    std::atomic<uint64_t> steps{0};
    // Whether a coroutine has emitted or acked between steps.
    std::atomic<bool> woken{false};

    void begin(unsigned long thread) {
        steps.fetch_add(1);
        stepping.store(thread);
    }
};

// A wait ends after so many looks in a row without a step. Executors pause between steps all the time, and the end of a
// wait takes the GIL from them.
constexpr int IDLE_LOOKS = 4;

// Looks every `secs` until a step goes on that did so at the look before, or something was done between steps: true.
// False once no step went on at `IDLE_LOOKS` looks.
inline bool wait_for_step(const std::vector<StepMark*>& marks, double secs) {
    std::vector<uint64_t> seen(marks.size());
    for (int idle = 0; idle < IDLE_LOOKS; ++idle) {
        for (size_t index = 0; index < marks.size(); ++index) {
            StepMark& mark = *marks[index];
            if (mark.woken.exchange(false)) return true;
            const uint64_t step = mark.stepping.load() == 0 ? 0 : mark.steps.load();
            if (step != 0 && step == seen[index]) return true;
            seen[index] = step;
            if (step != 0) idle = -1;
        }
        std::this_thread::sleep_for(std::chrono::duration<double>(secs));
    }
    return false;
}

}  // namespace acker
