#include "fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// The sanitizers' fiber interface. A build without the sanitizer leaves the symbols out.
extern "C" {
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, std::size_t* size);
}

namespace overspill::host {

namespace {

// A switch orders nothing: only what orders CUDA threads may.
constexpr unsigned kSwitchWithoutOrder = 1;

}  // namespace

#if defined(__x86_64__)
// Saves the registers that a call must keep and the stack pointer, and takes up those of another flow of control.
extern "C" void overspill_switch_stack(void** saved_stack, void* next_stack);
asm(R"(
.text
.globl overspill_switch_stack
.hidden overspill_switch_stack
.type overspill_switch_stack, @function
overspill_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size overspill_switch_stack, .-overspill_switch_stack
)");
#endif

struct Fiber::State {
    unsigned char* stack = nullptr;
    Entry entry = nullptr;
    void* argument = nullptr;
#if defined(__x86_64__)
    void* own = nullptr;
    void* resumer = nullptr;
#else
    ucontext_t own;
    ucontext_t resumer;
#endif
    void* tsan_own = nullptr;
    void* tsan_resumer = nullptr;
    void* fake_stack_own = nullptr;
    void* fake_stack_resumer = nullptr;
    const void* resumer_bottom = nullptr;
    std::size_t resumer_size = 0;

    static thread_local State* starting;

    static void trampoline() {
        State* state = starting;
        if (__sanitizer_finish_switch_fiber) {
            __sanitizer_finish_switch_fiber(nullptr, &state->resumer_bottom, &state->resumer_size);
        }
        state->entry(state->argument);
        std::abort();
    }

    void to_resumer(bool for_good) {
        if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(tsan_resumer, kSwitchWithoutOrder);
        if (__sanitizer_start_switch_fiber) {
            __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_own, resumer_bottom, resumer_size);
        }
#if defined(__x86_64__)
        overspill_switch_stack(&own, resumer);
#else
        swapcontext(&own, &resumer);
#endif
        if (__sanitizer_finish_switch_fiber) {
            __sanitizer_finish_switch_fiber(fake_stack_own, &resumer_bottom, &resumer_size);
        }
    }
};

thread_local Fiber::State* Fiber::State::starting = nullptr;

Fiber::Fiber() : state_(new State) {
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    state_->stack = static_cast<unsigned char*>(stack);
    // An overrun of a stack faults instead of writing into its neighbour.
    mprotect(stack, 4096, PROT_NONE);
}

Fiber::~Fiber() {
    if (state_->tsan_own != nullptr) __tsan_destroy_fiber(state_->tsan_own);
    munmap(state_->stack, kStackBytes);
}

void Fiber::prepare(Entry entry, void* argument) {
    state_->entry = entry;
    state_->argument = argument;
    if (__tsan_create_fiber && state_->tsan_own == nullptr) state_->tsan_own = __tsan_create_fiber(0);
#if defined(__x86_64__)
    // What `overspill_switch_stack` pops: six registers and the address to return to, below an aligned frame.
    auto top = reinterpret_cast<std::uintptr_t>(state_->stack + kStackBytes) & ~std::uintptr_t{15};
    auto* words = reinterpret_cast<void**>(top) - 8;
    for (int i = 0; i < 6; ++i) words[i] = nullptr;
    words[6] = reinterpret_cast<void*>(&State::trampoline);
    words[7] = nullptr;
    state_->own = words;
#else
    getcontext(&state_->own);
    state_->own.uc_stack.ss_sp = state_->stack;
    state_->own.uc_stack.ss_size = kStackBytes;
    state_->own.uc_link = nullptr;
    makecontext(&state_->own, &State::trampoline, 0);
#endif
}

void Fiber::resume() {
    State::starting = state_.get();
    if (__tsan_switch_to_fiber) {
        state_->tsan_resumer = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(state_->tsan_own, kSwitchWithoutOrder);
    }
    if (__sanitizer_start_switch_fiber) {
        __sanitizer_start_switch_fiber(&state_->fake_stack_resumer, state_->stack, kStackBytes);
    }
#if defined(__x86_64__)
    overspill_switch_stack(&state_->resumer, state_->own);
#else
    swapcontext(&state_->resumer, &state_->own);
#endif
    if (__sanitizer_finish_switch_fiber) {
        __sanitizer_finish_switch_fiber(state_->fake_stack_resumer, nullptr, nullptr);
    }
}

void Fiber::suspend() { state_->to_resumer(false); }

void Fiber::leave_for_good() {
    state_->to_resumer(true);
    std::abort();
}

void publish(void* token) {
    if (__tsan_release) __tsan_release(token);
}

void observe(void* token) {
    if (__tsan_acquire) __tsan_acquire(token);
}

}  // namespace overspill::host
