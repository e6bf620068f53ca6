// Kernels have C names, by which the driver finds them. The host build also needs to call them with the parameters that
// cuLaunchKernel is given.
#pragma once

#include "platform.cuh"

#if defined(OVERSPILL_HOST)

#include <cstddef>
#include <utility>

namespace overspill::host {

struct RegisteredKernel {
    const char* name;
    Thunk thunk;
    const std::size_t* parameter_sizes;
    std::size_t parameters;
    RegisteredKernel* next;
    static RegisteredKernel*& first() {
        static RegisteredKernel* head = nullptr;
        return head;
    }
    template <typename Unpacked>
    RegisteredKernel(const char* kernel_name, Unpacked)
        : name(kernel_name), thunk(&Unpacked::thunk), parameter_sizes(Unpacked::kSizes), parameters(Unpacked::kParameters), next(first()) {
        first() = this;
    }
};

template <auto Kernel>
struct Unpack;

template <typename... Parameters, void (*Kernel)(Parameters...)>
struct Unpack<Kernel> {
    static constexpr std::size_t kParameters = sizeof...(Parameters);
    static constexpr std::size_t kSizes[] = {sizeof(Parameters)...};
    template <std::size_t... Index>
    static void call(void** parameters, std::index_sequence<Index...>) {
        Kernel(*static_cast<const Parameters*>(parameters[Index])...);
    }
    static void thunk(void** parameters) { call(parameters, std::index_sequence_for<Parameters...>{}); }
};

}  // namespace overspill::host

// Defines a kernel. The name is followed by the parameters in brackets and the body.
#define OVERSPILL_KERNEL(name, ...)                                                                                           \
    void name(__VA_ARGS__);                                                                                                   \
    static ::overspill::host::RegisteredKernel registered_##name(#name, ::overspill::host::Unpack<&name>{});            \
    void name(__VA_ARGS__)

#else

#define OVERSPILL_KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)

#endif
