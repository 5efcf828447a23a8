// What lets two threads meet at one acker without harm: one is inside, and anyone may read the last published counts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace acker {

class Gate {
  public:
    bool enter() noexcept { return !taken_.exchange(true, std::memory_order_acquire); }
    void leave() noexcept { taken_.store(false, std::memory_order_release); }

  private:
    std::atomic<bool> taken_{false};
};

// Numbers that belong together: whoever reads them sees them as one call left them, never half of the next.
class Published {
  public:
    static constexpr size_t NUMBERS = 14;  // the eleven counters, entries held, open trees, bytes

    void write(const int64_t* numbers) noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        std::memcpy(numbers_, numbers, sizeof(numbers_));
    }

    void read(int64_t* numbers) const noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        std::memcpy(numbers, numbers_, sizeof(numbers_));
    }

  private:
    mutable std::mutex mutex_;
    int64_t numbers_[NUMBERS] = {};
};

}  // namespace acker
