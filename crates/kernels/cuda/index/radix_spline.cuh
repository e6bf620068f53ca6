// RadixSpline (Kipf et al., 2020; paper 3, section 2.2): a table gives the spline points near a key, interpolation between them about
// where it is, and a search from there its place. A thread a key.
#pragma once

#include "arguments.cuh"

namespace overspill {

// Keys of a line, in which a search from an estimate begins.
constexpr u64 kLineKeys = kLineBytes / sizeof(u64);

// The place of the first key that is not smaller, searched from `near` on in steps that double.
__device__ __forceinline__ u64 search_near(const u64* keys, u64 length, u64 near, u64 key) {
    // The place is one of `first` to `end`.
    u64 first, end;
    u64 step = kLineKeys;
    if (keys[near] < key) {
        for (first = near + 1;; first = end, step *= 2) {
            end = first + step;
            if (end > length) {
                end = length;
                break;
            }
            if (!(keys[end - 1] < key)) {
                --end;
                break;
            }
        }
    } else {
        for (end = near;; end = first, step *= 2) {
            if (end < step) {
                first = 0;
                break;
            }
            first = end - step;
            if (keys[first] < key) {
                ++first;
                break;
            }
        }
    }
    return first + count_smaller(keys + first, end - first, key);
}

struct RadixSplineIndex {
    const IndexArguments& index;

    __device__ __forceinline__ u64 lower_bound(u64 key, u32) const {
        if (index.length == 0) return 0;
        // Keys out of range are looked up as the nearest in range.
        const u64 near = key < index.smallest ? index.smallest : smaller(key, index.largest);
        return search_near(index.keys, index.length, estimate(near), key);
    }

  private:
    __device__ __forceinline__ u64 estimate(u64 key) const {
        const u64 entry = (key - index.smallest) >> index.shift;
        // The first point that is not smaller; the last is the largest key.
        u64 point = index.table[entry];
        u64 end = index.table[entry + 1];
        while (point < end) {
            const u64 middle = (point + end) / 2;
            if (index.points[middle].first < key) {
                point = middle + 1;
            } else {
                end = middle;
            }
        }
        if (point == 0) return 0;
        const TwoWords before = index.points[point - 1];
        const TwoWords after = index.points[point];
        const double slope = static_cast<double>(after.second - before.second) / static_cast<double>(after.first - before.first);
        const u64 place = before.second + static_cast<u64>(slope * static_cast<double>(key - before.first));
        return smaller(place, index.length - 1);
    }
};

}  // namespace overspill
