// Stacks that a worker thread switches between.
#pragma once

#include <cstddef>
#include <memory>

namespace overspill::host {

constexpr std::size_t kStackBytes = 64 * 1024;

// A flow of control with a stack of its own. It belongs to the thread that made it.
class Fiber {
  public:
    using Entry = void (*)(void* argument);

    Fiber();
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Makes the next `resume` call `entry(argument)`, which never returns: it ends by `leave_for_good`. To ThreadSanitizer it
    // is the same thread as before.
    void prepare(Entry entry, void* argument);
    // Runs the fiber until it suspends. Called by the scheduler of the worker.
    void resume();
    // Goes back to whoever resumed the fiber. Called by the fiber.
    void suspend();
    [[noreturn]] void leave_for_good();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Tell ThreadSanitizer, where it is there, what orders memory. `token` names the order.
void publish(void* token);
void observe(void* token);

}  // namespace overspill::host
