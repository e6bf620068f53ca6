// Columns of values of 1, 2, 4, 8 or 16 bytes, moved as they are.
#pragma once

#include "platform.cuh"

namespace overspill {

// A column of a table whose rows a kernel reorders. Mirrored in Rust.
struct MovedColumn {
    const void* input;
    void* output;
    u64 width;
};

// Calls `of_type(value)` with a value of the type that is `width` bytes wide. All threads of a block take the same way.
template <typename OfType>
__device__ __forceinline__ void with_type_of_width(u64 width, OfType&& of_type) {
    switch (width) {
    case 1: of_type(u8{0}); break;
    case 2: of_type(u16{0}); break;
    case 4: of_type(u32{0}); break;
    case 8: of_type(u64{0}); break;
    default: of_type(TwoWords{0, 0}); break;
    }
}

}  // namespace overspill
