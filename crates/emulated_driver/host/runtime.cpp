#include "runtime.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "fiber.hpp"

namespace overspill::host {

namespace {

constexpr unsigned kLanes = 32;
constexpr std::size_t kLineBytes = 128;
// What the scratchpad is filled with before a block runs.
constexpr unsigned char kPoison = 0xA5;
// A block whose threads have stepped aside this often, without one of them getting anywhere else, is taken to be stuck.
constexpr std::uint64_t kIdleTurnsBeforeStuck = 50'000'000;

std::uint64_t mix(std::uint64_t value) {
    value += 0x9E3779B97F4A7C15ull;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() { return mix(state_ += 0xD1342543DE82EF95ull); }
    unsigned below(std::size_t bound) { return static_cast<unsigned>((next() >> 32) % bound); }

  private:
    std::uint64_t state_;
};

enum class State : std::uint8_t { ready, at_barrier, in_warp_operation, ended };

// A CUDA thread.
struct Thread {
    ThreadIdentity identity{};
    std::unique_ptr<Fiber> fiber;
    unsigned index = 0;
    State state = State::ended;
    const char* file = "";
    int line = 0;
    std::uint64_t result = 0;

    unsigned lane() const { return index % kLanes; }
};

// The lanes of one warp that have arrived at one operation.
struct Gathering {
    WarpOperation operation;
    unsigned mask;
    unsigned arrived;
    const char* file;
    int line;
    std::array<std::uint64_t, kLanes> values;
    std::array<unsigned, kLanes> sources;
};

struct Warp {
    std::vector<Gathering> gatherings;
    unsigned ended = 0;
    // What lanes publish to each other at __syncwarp, by the first lane of the mask: disjoint masks order nothing between them.
    std::array<char, kLanes> orders{};
};

// Fibers that no launch uses. They are kept, as making one costs more than running a small kernel on it, above all one that
// ThreadSanitizer knows. For it a fiber stays one thread from launch to launch, which hides nothing: launches follow each
// other, so all of one comes before all of the next.
class FiberPool {
  public:
    std::unique_ptr<Fiber> take() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (free_.empty()) return std::make_unique<Fiber>();
        std::unique_ptr<Fiber> fiber = std::move(free_.back());
        free_.pop_back();
        return fiber;
    }

    void give_back(std::unique_ptr<Fiber> fiber) {
        const std::lock_guard<std::mutex> lock(mutex_);
        free_.push_back(std::move(fiber));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Fiber>> free_;
};

// Lives as long as the process: a launch may still run while static objects are destroyed. Made when the library is
// loaded, so that no launch waits for it or, in the eyes of ThreadSanitizer, races for it.
FiberPool& fiber_pool = *new FiberPool;

// What all workers of a launch share.
struct Grid {
    explicit Grid(const Launch& launch) : launch(launch) {}

    const Launch& launch;
    std::atomic<std::uint64_t> next_block{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::string error;
    FlushCounts counts{};
    char order = 0;

    std::uint64_t blocks() const {
        return static_cast<std::uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    }
};

class Worker {
  public:
    explicit Worker(Grid& grid)
        // Just as large as asked for, so that AddressSanitizer sees what goes past its end.
        : grid_(grid),
          dynamic_shared_(static_cast<unsigned char*>(
              ::operator new[](std::max<std::size_t>(grid.launch.dynamic_shared_bytes, 1), std::align_val_t{kLineBytes}))),
          random_(0) {
        const Index3 shape = grid.launch.block;
        threads_ = std::vector<Thread>(static_cast<std::size_t>(shape.x) * shape.y * shape.z);
        for (Thread& thread : threads_) thread.fiber = fiber_pool.take();
        ready_.resize(threads_.size());
        warps_.resize((threads_.size() + kLanes - 1) / kLanes);
        for (Warp& warp : warps_) warp.gatherings.reserve(kLanes);
    }

    ~Worker() {
        for (Thread& thread : threads_) fiber_pool.give_back(std::move(thread.fiber));
        ::operator delete[](dynamic_shared_, std::align_val_t{kLineBytes});
    }

    void run() {
        current = this;
        const std::uint64_t blocks = grid_.blocks();
        while (!grid_.failed.load()) {
            const std::uint64_t block = grid_.next_block.fetch_add(1);
            if (block >= blocks) break;
            run_block(block);
        }
        current = nullptr;
        const std::lock_guard<std::mutex> lock(grid_.mutex);
        grid_.counts.flushes += counts_.flushes;
        grid_.counts.full_lines += counts_.full_lines;
        grid_.counts.full_line_bytes += counts_.full_line_bytes;
        grid_.counts.partial_lines += counts_.partial_lines;
        grid_.counts.partial_line_bytes += counts_.partial_line_bytes;
    }

    // What a kernel calls, in the fiber that runs.

    const ThreadIdentity& identity() const { return running_->identity; }
    unsigned lane() const { return running_->lane(); }
    unsigned char* dynamic_shared() const { return dynamic_shared_; }

    int barrier(int predicate, const char* file, int line) {
        if (arrived_ == 0) {
            barrier_file_ = file;
            barrier_line_ = line;
        } else if (barrier_line_ != line || std::strcmp(barrier_file_, file) != 0) {
            fail("threads of one block wait at different barriers: thread %u at %s:%d, others at %s:%d", running_->index, file, line,
                 barrier_file_, barrier_line_);
        }
        ++arrived_;
        barrier_sum_ += predicate != 0 ? 1 : 0;
        publish(&barrier_order_);
        wait(State::at_barrier, file, line);
        observe(&barrier_order_);
        return static_cast<int>(running_->result);
    }

    std::uint64_t warp_operation(WarpOperation operation, unsigned mask, std::uint64_t value, unsigned source, const char* file,
                                 int line) {
        Warp& warp = warps_[running_->index / kLanes];
        const unsigned own = 1u << running_->lane();
        const unsigned there = lanes_of(running_->index / kLanes);
        if ((mask & own) == 0) fail("thread %u is not in the mask %08x of its warp operation at %s:%d", running_->index, mask, file, line);
        if ((mask & ~there) != 0) fail("the mask %08x of %s:%d names lanes that the warp does not have (%08x)", mask, file, line, there);
        if ((mask & warp.ended) != 0) {
            fail("the mask %08x of %s:%d names lanes that have ended (%08x)", mask, file, line, warp.ended);
        }
        char* order = &warp.orders[static_cast<unsigned>(__builtin_ctz(mask))];
        if (operation == WarpOperation::synchronise) publish(order);
        auto gathering = std::find_if(warp.gatherings.begin(), warp.gatherings.end(), [&](const Gathering& other) {
            return other.mask == mask && other.operation == operation && other.line == line && std::strcmp(other.file, file) == 0;
        });
        // Lanes may come here while others that are named here still wait for each other elsewhere, but not for these.
        const unsigned here = own | (gathering == warp.gatherings.end() ? 0 : gathering->arrived);
        for (auto other = warp.gatherings.begin(); other != warp.gatherings.end(); ++other) {
            if (other != gathering && (other->arrived & mask) != 0 && (here & other->mask) != 0) {
                fail("lanes %08x wait at %s:%d for lanes %08x, which wait for them at %s:%d", other->arrived, other->file, other->line,
                     here, file, line);
            }
        }
        if (gathering == warp.gatherings.end()) {
            warp.gatherings.push_back(Gathering{operation, mask, 0, file, line, {}, {}});
            gathering = warp.gatherings.end() - 1;
        }
        gathering->arrived |= own;
        gathering->values[running_->lane()] = value;
        gathering->sources[running_->lane()] = source;
        std::uint64_t result;
        if (gathering->arrived == mask) {
            result = complete(warp, gathering);
            // The others are ready now, and the last to arrive must not always be the first to go on.
            maybe_step_aside();
        } else {
            wait(State::in_warp_operation, file, line);
            result = running_->result;
        }
        if (operation == WarpOperation::synchronise) observe(order);
        return result;
    }

    void step_aside() {
        ++idle_turns_;
        if (idle_turns_ > kIdleTurnsBeforeStuck) fail("its threads spin for ever");
        make_ready(*running_);
        running_->fiber->suspend();
    }

    void maybe_step_aside() {
        if (grid_.launch.seed != 0 && (random_.next() >> 61) == 0) {
            make_ready(*running_);
            running_->fiber->suspend();
        }
    }

    void count_flush(std::uintptr_t destination, std::size_t bytes) {
        if (bytes == 0 || grid_.launch.is_cpu_memory == nullptr || !grid_.launch.is_cpu_memory(destination)) return;
        ++counts_.flushes;
        std::uintptr_t at = destination;
        const std::uintptr_t end = destination + bytes;
        while (at < end) {
            const std::uintptr_t line_end = (at / kLineBytes + 1) * kLineBytes;
            const std::uintptr_t until = std::min(end, line_end);
            if (until - at == kLineBytes) {
                ++counts_.full_lines;
                counts_.full_line_bytes += kLineBytes;
            } else {
                ++counts_.partial_lines;
                counts_.partial_line_bytes += until - at;
            }
            at = until;
        }
    }

    [[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 2, 3))) {
        char text[512];
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        record_failure(text);
        running_->fiber->leave_for_good();
    }

    static thread_local Worker* current;

  private:
    void run_block(std::uint64_t block) {
        const Launch& launch = grid_.launch;
        block_ = block;
        random_ = Random(mix(launch.seed) ^ mix(block));
        std::memset(dynamic_shared_, kPoison, launch.dynamic_shared_bytes);
        ready_first_ = 0;
        ready_count_ = 0;
        arrived_ = 0;
        barrier_sum_ = 0;
        idle_turns_ = 0;
        live_ = static_cast<unsigned>(threads_.size());
        for (Warp& warp : warps_) {
            warp.gatherings.clear();
            warp.ended = 0;
        }
        const Index3 shape = launch.block;
        const Index3 position{static_cast<unsigned>(block % launch.grid.x), static_cast<unsigned>(block / launch.grid.x % launch.grid.y),
                              static_cast<unsigned>(block / launch.grid.x / launch.grid.y)};
        // Blocks that follow each other on one worker share its scratchpad, so they are ordered; others are not.
        publish(&block_order_);
        for (unsigned index = 0; index < threads_.size(); ++index) {
            Thread& thread = threads_[index];
            thread.index = index;
            thread.identity = ThreadIdentity{{index % shape.x, index / shape.x % shape.y, index / shape.x / shape.y}, position, shape, launch.grid};
            thread.fiber->prepare(&Worker::enter, &thread);
            make_ready(thread);
        }
        while (live_ != 0 && !grid_.failed.load(std::memory_order_relaxed)) {
            if (ready_count_ == 0) {
                report_deadlock();
                break;
            }
            running_ = take_ready();
            running_->fiber->resume();
            if (running_->state == State::ended) thread_ended();
        }
        observe(&block_order_);
    }

    static void enter(void* argument) {
        auto* thread = static_cast<Thread*>(argument);
        Worker* worker = current;
        observe(&worker->grid_.order);
        observe(&worker->block_order_);
        worker->grid_.launch.thunk(worker->grid_.launch.parameters);
        publish(&worker->block_order_);
        publish(&worker->grid_.order);
        thread->state = State::ended;
        thread->fiber->leave_for_good();
    }

    void make_ready(Thread& thread) {
        thread.state = State::ready;
        ready_[(ready_first_ + ready_count_) % ready_.size()] = &thread;
        ++ready_count_;
    }

    Thread* take_ready() {
        if (grid_.launch.seed != 0) {
            std::swap(ready_[ready_first_], ready_[(ready_first_ + random_.below(ready_count_)) % ready_.size()]);
        }
        Thread* thread = ready_[ready_first_];
        ready_first_ = (ready_first_ + 1) % ready_.size();
        --ready_count_;
        return thread;
    }

    void wait(State state, const char* file, int line) {
        running_->state = state;
        running_->file = file;
        running_->line = line;
        idle_turns_ = 0;
        if (state == State::at_barrier) release_barrier_if_complete();
        running_->fiber->suspend();
    }

    void release_barrier_if_complete() {
        if (arrived_ == 0 || arrived_ != live_) return;
        const int sum = barrier_sum_;
        arrived_ = 0;
        barrier_sum_ = 0;
        for (Thread& thread : threads_) {
            if (thread.state != State::at_barrier) continue;
            thread.result = static_cast<std::uint64_t>(sum);
            make_ready(thread);
        }
    }

    void thread_ended() {
        --live_;
        idle_turns_ = 0;
        Warp& warp = warps_[running_->index / kLanes];
        warp.ended |= 1u << running_->lane();
        for (const Gathering& gathering : warp.gatherings) {
            if ((gathering.mask & warp.ended) == 0) continue;
            char text[256];
            std::snprintf(text, sizeof(text), "lanes %08x wait at %s:%d for lanes %08x, which have ended", gathering.arrived,
                          gathering.file, gathering.line, gathering.mask & warp.ended);
            record_failure(text);
        }
        release_barrier_if_complete();
    }

    unsigned lanes_of(std::size_t warp) const {
        const std::size_t lanes = std::min<std::size_t>(kLanes, threads_.size() - warp * kLanes);
        return lanes == kLanes ? ~0u : (1u << lanes) - 1;
    }

    // Called by the last lane to arrive: gives every lane its result, wakes the others, and returns the caller's own.
    std::uint64_t complete(Warp& warp, std::vector<Gathering>::iterator finished) {
        const Gathering gathering = *finished;
        warp.gatherings.erase(finished);
        std::uint64_t ballot = 0;
        for (unsigned lane = 0; lane < kLanes; ++lane) {
            if ((gathering.mask >> lane & 1) != 0 && gathering.values[lane] != 0) ballot |= std::uint64_t{1} << lane;
        }
        const unsigned first = running_->index / kLanes * kLanes;
        for (unsigned lane = 0; lane < kLanes; ++lane) {
            if ((gathering.mask >> lane & 1) == 0) continue;
            std::uint64_t result = 0;
            switch (gathering.operation) {
                case WarpOperation::synchronise:
                    break;
                case WarpOperation::ballot:
                    result = ballot;
                    break;
                case WarpOperation::shuffle: {
                    const unsigned source = gathering.sources[lane];
                    if (source >= kLanes || (gathering.mask >> source & 1) == 0) {
                        fail("lane %u shuffles at %s:%d from lane %u, which is not in the mask %08x", lane, gathering.file, gathering.line,
                             source, gathering.mask);
                    }
                    result = gathering.values[source];
                    break;
                }
                case WarpOperation::match_any:
                    for (unsigned other = 0; other < kLanes; ++other) {
                        if ((gathering.mask >> other & 1) != 0 && gathering.values[other] == gathering.values[lane]) {
                            result |= std::uint64_t{1} << other;
                        }
                    }
                    break;
            }
            Thread& thread = threads_[first + lane];
            thread.result = result;
            if (&thread != running_) make_ready(thread);
        }
        return running_->result;
    }

    void report_deadlock() {
        std::string text = "every thread of a block waits:";
        unsigned named = 0;
        for (const Thread& thread : threads_) {
            if (thread.state == State::ended || named == 8) continue;
            char place[160];
            std::snprintf(place, sizeof(place), " thread %u at %s:%d;", thread.index, thread.file, thread.line);
            text += place;
            ++named;
        }
        record_failure(text.c_str());
    }

    void record_failure(const char* text) {
        const std::lock_guard<std::mutex> lock(grid_.mutex);
        if (grid_.error.empty()) grid_.error = "block " + std::to_string(block_) + ": " + text;
        grid_.failed.store(true);
    }

    Grid& grid_;
    unsigned char* dynamic_shared_;
    Random random_;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    // A ring: a thread is in it at most once, and fibers must not allocate (ThreadSanitizer would take the allocator's
    // memory for theirs).
    std::vector<Thread*> ready_;
    std::size_t ready_first_ = 0;
    std::size_t ready_count_ = 0;
    Thread* running_ = nullptr;
    std::uint64_t block_ = 0;
    std::uint64_t idle_turns_ = 0;
    unsigned live_ = 0;
    unsigned arrived_ = 0;
    int barrier_sum_ = 0;
    const char* barrier_file_ = "";
    int barrier_line_ = 0;
    char barrier_order_ = 0;
    char block_order_ = 0;
    FlushCounts counts_{};
};

thread_local Worker* Worker::current = nullptr;

}  // namespace

bool run(const Launch& launch, FlushCounts& counts, char* error, std::size_t error_capacity) {
    Grid grid(launch);
    publish(&grid.order);
    const auto workers = static_cast<unsigned>(std::min<std::uint64_t>(std::max(launch.workers, 1u), grid.blocks()));
    std::vector<std::thread> threads;
    threads.reserve(workers);
    for (unsigned worker = 0; worker < workers; ++worker) {
        threads.emplace_back([&grid] { Worker(grid).run(); });
    }
    for (std::thread& thread : threads) thread.join();
    observe(&grid.order);
    counts = grid.counts;
    std::snprintf(error, error_capacity, "%s", grid.error.c_str());
    return grid.error.empty();
}

const ThreadIdentity& identity() { return Worker::current->identity(); }

unsigned lane() { return Worker::current->lane(); }

unsigned char* dynamic_shared() { return Worker::current->dynamic_shared(); }

void block_barrier(const char* file, int line) { Worker::current->barrier(0, file, line); }

int block_barrier_count(int predicate, const char* file, int line) { return Worker::current->barrier(predicate, file, line); }

std::uint64_t warp_operation(WarpOperation operation, unsigned mask, std::uint64_t value, unsigned source, const char* file, int line) {
    return Worker::current->warp_operation(operation, mask, value, source, file, line);
}

void step_aside() { Worker::current->step_aside(); }

void maybe_step_aside() { Worker::current->maybe_step_aside(); }

void count_flush(const void* destination, std::size_t bytes) {
    Worker::current->count_flush(reinterpret_cast<std::uintptr_t>(destination), bytes);
}

void trap(const char* message, const char* file, int line) { Worker::current->fail("%s at %s:%d", message, file, line); }

}  // namespace overspill::host
