//! Reservations, writes and reads that fail, and streams that are dropped, never polled or polled in any order.
