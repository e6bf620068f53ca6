//! Where spill files live.
