//! The placement of the stripes of a range.

use crate::{Error, Result};

/// Allowed stripe sizes. Smaller stripes need many mappings, larger ones make the interleaving coarse.
const STRIPES: std::ops::RangeInclusive<u64> = 2 << 20..=32 << 20;

/// The order of GPU and CPU pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// GPU pages first, then CPU pages: the most used data comes first (paper 2, section 5.3).
    Greedy,
    /// An even mix of GPU and CPU pages, so that reading the range in order uses GPU memory and the link all the time (paper 1,
    /// section 5.3).
    Interleaved,
    /// An even mix of pages of all GPUs, then CPU pages (paper 2, section 6.3): greedy between GPU and CPU, interleaved among
    /// GPUs, so that each GPU serves its share of random accesses.
    GreedyInterleaved,
}

/// The memory that holds a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Memory of the buffer's n-th device.
    Device(usize),
    /// CPU memory.
    Host,
}

/// The layout of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanningLayout {
    /// The order of GPU and CPU pages.
    pub layout: Layout,
    /// Bytes of the whole range.
    pub bytes: u64,
    /// Maximum bytes in each device's memory. Each device holds as many whole stripes as fit these bytes.
    pub device_bytes: Vec<u64>,
    /// Bytes per stripe: a multiple of the device's granularity, from 2 to 32 MiB.
    pub stripe_bytes: u64,
    /// The NUMA node of the CPU pages: the one nearest to the device. With two arrays, the system chooses the node.
    pub node: u32,
}

impl SpanningLayout {
    /// Returns the memory of each stripe.
    ///
    /// # Errors
    /// If the stripe size is not allowed.
    pub(super) fn places(&self) -> Result<Vec<Place>> {
        if !STRIPES.contains(&self.stripe_bytes) {
            return Err(Error::Invalid(format!(
                "stripes of {} bytes: they may be {} to {}",
                self.stripe_bytes,
                STRIPES.start(),
                STRIPES.end()
            )));
        }
        let stripes = self.bytes.div_ceil(self.stripe_bytes);
        let mut left = stripes;
        let mut shares: Vec<(Place, u64)> = Vec::new();
        for (device, bytes) in self.device_bytes.iter().enumerate() {
            let share = left.min(bytes / self.stripe_bytes);
            left -= share;
            shares.push((Place::Device(device), share));
        }
        let host = (Place::Host, left);
        Ok(match self.layout {
            Layout::Greedy => shares.into_iter().chain([host]).flat_map(run).collect(),
            Layout::Interleaved => {
                shares.push(host);
                interleave(&shares, stripes)
            }
            Layout::GreedyInterleaved => interleave(&shares, stripes - left).into_iter().chain(run(host)).collect(),
        })
    }

    /// Bytes that do not fit the GPUs' shares.
    pub(super) fn host_bytes(&self) -> u64 {
        let stripe = self.stripe_bytes.max(1);
        let on_devices = self.device_bytes.iter().map(|bytes| bytes / stripe * stripe).fold(0, u64::saturating_add);
        self.bytes.saturating_sub(on_devices)
    }
}

/// Returns `share` stripes of the memory `place`.
fn run((place, share): (Place, u64)) -> impl Iterator<Item = Place> {
    std::iter::repeat_n(place, usize::try_from(share).unwrap_or(usize::MAX))
}

/// Assigns each stripe to the memory that is furthest behind its share. Any part of the range has about the shares of the
/// whole, and the whole has them exactly.
fn interleave(shares: &[(Place, u64)], stripes: u64) -> Vec<Place> {
    let mut given = vec![0u64; shares.len()];
    (1..=u128::from(stripes))
        .map(|number| {
            let behind = |at: usize| {
                let due = u128::from(shares[at].1) * number;
                due.saturating_sub(u128::from(given[at]) * u128::from(stripes))
            };
            let chosen = (0..shares.len()).rev().max_by_key(|at| behind(*at)).unwrap_or(0);
            given[chosen] += 1;
            shares[chosen].0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn layout(layout: Layout, stripes: u64, devices: &[u64]) -> SpanningLayout {
        SpanningLayout {
            layout,
            bytes: stripes * 2 * MIB,
            device_bytes: devices.iter().map(|share| share * 2 * MIB).collect(),
            stripe_bytes: 2 * MIB,
            node: 0,
        }
    }

    fn letters(layout: &SpanningLayout) -> String {
        let letter = |place| match place {
            Place::Host => 'h',
            Place::Device(device) => char::from(b'0' + u8::try_from(device).unwrap()),
        };
        layout.places().unwrap().into_iter().map(letter).collect()
    }

    #[test]
    fn greedy_fills_the_devices_first() {
        assert_eq!(letters(&layout(Layout::Greedy, 6, &[2])), "00hhhh");
        assert_eq!(letters(&layout(Layout::Greedy, 6, &[2, 3])), "00111h");
        assert_eq!(letters(&layout(Layout::Greedy, 3, &[9])), "000");
        assert_eq!(letters(&layout(Layout::Greedy, 3, &[])), "hhh");
        assert_eq!(letters(&layout(Layout::Greedy, 0, &[1])), "");
    }

    #[test]
    fn interleaved_is_even() {
        assert_eq!(letters(&layout(Layout::Interleaved, 6, &[3])), "0h0h0h");
        assert_eq!(letters(&layout(Layout::Interleaved, 6, &[2])), "h0hh0h");
        assert_eq!(letters(&layout(Layout::Interleaved, 4, &[2, 2])), "0101");
    }

    #[test]
    fn gpus_are_interleaved_before_the_cpu() {
        assert_eq!(letters(&layout(Layout::GreedyInterleaved, 6, &[2, 2])), "0101hh");
        assert_eq!(letters(&layout(Layout::GreedyInterleaved, 6, &[2, 2, 2])), "012012");
        assert_eq!(letters(&layout(Layout::GreedyInterleaved, 6, &[3])), "000hhh");
        assert_eq!(letters(&layout(Layout::GreedyInterleaved, 3, &[0, 0])), "hhh");
    }

    #[test]
    fn every_stretch_holds_about_the_shares() {
        for (stripes, devices) in [(100, vec![1]), (97, vec![13, 29]), (64, vec![63]), (1000, vec![333, 333])] {
            let places = layout(Layout::Interleaved, stripes, &devices).places().unwrap();
            let total = places.len() as f64;
            for (device, share) in devices.iter().enumerate() {
                let mut seen = 0.0;
                for (number, place) in places.iter().enumerate() {
                    seen += f64::from(u8::from(*place == Place::Device(device)));
                    let due = *share as f64 * (number + 1) as f64 / total;
                    assert!((seen - due).abs() <= 2.0, "{stripes} {devices:?}: {seen} of {due} after {number}");
                }
                assert_eq!(seen, *share as f64);
            }
        }
    }

    #[test]
    fn a_last_stripe_may_be_part_of_one() {
        let layout = SpanningLayout { bytes: 5 * MIB, ..layout(Layout::Greedy, 0, &[1]) };
        assert_eq!(letters(&layout), "0hh");
    }

    #[test]
    fn stripes_have_limits() {
        for stripe_bytes in [0, MIB, 64 * MIB] {
            let error = SpanningLayout { stripe_bytes, ..layout(Layout::Greedy, 4, &[1]) }.places().unwrap_err();
            assert!(error.to_string().contains("2097152"), "{error}");
        }
    }
}
