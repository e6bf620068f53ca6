// The kernels, compiled for the CPU, and the table by which the driver finds them.

#include "kernels.cu"

extern "C" {

// A kernel by number, null past the last: its name, how to call it, and the sizes of its parameters.
struct overspill_host_kernel {
    const char* name;
    overspill::host::Thunk thunk;
    const std::size_t* parameter_sizes;
    std::size_t parameters;
};

bool overspill_host_kernel_at(std::size_t number, overspill_host_kernel* kernel) {
    const auto* at = overspill::host::RegisteredKernel::first();
    while (at != nullptr && number > 0) {
        at = at->next;
        --number;
    }
    if (at == nullptr) return false;
    *kernel = overspill_host_kernel{at->name, at->thunk, at->parameter_sizes, at->parameters};
    return true;
}

struct overspill_host_launch {
    overspill::host::Thunk thunk;
    void** parameters;
    unsigned grid[3];
    unsigned block[3];
    std::size_t dynamic_shared_bytes;
    std::uint64_t seed;
    unsigned workers;
    bool (*is_cpu_memory)(std::uintptr_t);
};

bool overspill_host_run(const overspill_host_launch* launch, overspill::host::FlushCounts* counts, char* error, std::size_t error_capacity) {
    using overspill::host::Index3;
    const overspill::host::Launch request{launch->thunk,
                                          launch->parameters,
                                          Index3{launch->grid[0], launch->grid[1], launch->grid[2]},
                                          Index3{launch->block[0], launch->block[1], launch->block[2]},
                                          launch->dynamic_shared_bytes,
                                          launch->seed,
                                          launch->workers,
                                          launch->is_cpu_memory};
    return overspill::host::run(request, *counts, error, error_capacity);
}
}
