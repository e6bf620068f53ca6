// Runs CUDA kernels on the CPU: what a kernel sees of the runtime, and what the driver asks of it.
//
// A block runs on one worker thread. Each of its CUDA threads is a fiber with a stack of its own, which runs until it
// waits for others (a barrier, a warp operation), steps aside (before an atomic operation, by a seeded choice), or ends.
// Which fiber is next is first come, first served, or drawn by a seeded generator, so that one seed is one schedule.
//
// Nothing here is instrumented by sanitizers; the kernels are. Fibers are told to ThreadSanitizer as threads of their
// own, and they are ordered only by what orders them in CUDA: barriers, __syncwarp, and atomic operations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace overspill::host {

struct Index3 {
    unsigned x;
    unsigned y;
    unsigned z;
};

// What a kernel asks for by threadIdx, blockIdx, blockDim and gridDim.
struct ThreadIdentity {
    Index3 thread;
    Index3 block;
    Index3 block_shape;
    Index3 grid_shape;
};

enum class WarpOperation : std::uint8_t { synchronise, ballot, shuffle, match_any };

// Writes that left through the flush helper of the kernels, by where they went and how they fit in lines of 128 bytes.
struct FlushCounts {
    std::uint64_t flushes;
    std::uint64_t full_lines;
    std::uint64_t full_line_bytes;
    std::uint64_t partial_lines;
    std::uint64_t partial_line_bytes;
};

// Unpacks the parameters that cuLaunchKernel is given, and calls the kernel for one CUDA thread.
using Thunk = void (*)(void** parameters);

struct Launch {
    Thunk thunk;
    void** parameters;
    Index3 grid;
    Index3 block;
    std::size_t dynamic_shared_bytes;
    // 0 runs fibers first come, first served, and lets them step aside only where they wait.
    std::uint64_t seed;
    unsigned workers;
    // Whether an address lies in CPU memory: only flushes to it are counted.
    bool (*is_cpu_memory)(std::uintptr_t address);
};

// Runs a grid to its end. Returns false, and says why in `error`, where the kernel breaks a rule of CUDA: a barrier that
// not all threads reach, a warp operation with a wrong mask, threads that all wait.
bool run(const Launch& launch, FlushCounts& counts, char* error, std::size_t error_capacity);

// The calls below are for kernels, through shim.hpp.

const ThreadIdentity& identity();
unsigned lane();
unsigned char* dynamic_shared();
void block_barrier(const char* file, int line);
// The block barrier that also tells whether `predicate` held for any thread (__syncthreads_or) or counts them.
int block_barrier_count(int predicate, const char* file, int line);
// `value` is a lane's own; `source` the lane that a shuffle reads. Returns the ballot, the shuffled value or the mask of equals.
std::uint64_t warp_operation(WarpOperation operation, unsigned mask, std::uint64_t value, unsigned source, const char* file,
                             int line);
void step_aside();
void maybe_step_aside();
void count_flush(const void* destination, std::size_t bytes);
[[noreturn]] void trap(const char* message, const char* file, int line);

}  // namespace overspill::host
